"""The plan of a job: who would be where, and with what."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.cli.plan import LATER, THERE, THIS_MACHINE, Plan, explain_start, explain_way, make_plan, render_plan
from hvdrun.errors import TooFewSlotsNowError
from hvdrun.processes.binding import BindTo
from hvdrun.shim.path import FOLDER
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity, Limits
from hvdrun.spec.remote import Remote
from rendezvous.core.model import Host, Recovery, Restarts
from tests.hvdrun.specs import build_spec, with_fields

PATH = {b"PATH": os.fsencode(os.environ["PATH"])}
PYTHON = ("python3", "train.py")


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    hosts = (Host("localhost", 2), Host("127.0.0.1", 2))
    return build_spec(command=("sh", "-c", "true"), size=3, hosts=hosts, directory=tmp_path)


def test_the_program_is_the_file_that_is_executed(spec: JobSpec) -> None:
    assert make_plan(spec, PATH).hosts[0].program == shutil.which("sh")
    (spec.workers.directory / "x").touch(0o755)
    assert make_plan(with_fields(spec, command=("./x",)), PATH).hosts[0].program == str(spec.workers.directory / "x")


def test_variables_that_differ_stand_with_their_worker_and_the_others_with_the_host(spec: JobSpec) -> None:
    first, second = make_plan(spec, PATH | {b"HVD_JOB": b"around", b"HVD_ODD": b"1", b"HOROVOD_ELASTIC": b"0"}).hosts
    assert first.environment["OMP_NUM_THREADS"] == "1"
    assert first.environment["PYTHONUNBUFFERED"] == "1"
    assert (first.environment["WORLD_SIZE"], first.environment["GROUP_WORLD_SIZE"]) == ("3", "2")
    assert first.environment["HVD_JOB"] == first.environment["MASTER_PORT"] == LATER
    assert first.environment["HOROVOD_ELASTIC"] == "0"
    assert "PATH" not in first.environment
    assert first.removed == ("HVD_ODD",)
    assert [worker.environment["RANK"] for worker in first.workers] == ["0", "1"]
    assert [worker.environment["HVD_SLOT"] for worker in first.workers] == ["localhost:0", "localhost:1"]
    assert first.environment.keys().isdisjoint(first.workers[0].environment)
    assert "OMP_NUM_THREADS" not in second.environment
    assert (second.environment["RANK"], second.environment["GROUP_RANK"]) == ("2", "1")


@pytest.mark.parametrize("size", [2, 4])
def test_a_detached_job_that_restarts_has_variables_of_its_own(spec: JobSpec, size: int) -> None:
    spec = with_fields(spec, size=size)
    limits = Limits(server_timeout_seconds=90.0, elasticity=Elasticity(2, size, restarts=Restarts(limit=1)))
    changed = replace(spec, limits=limits, display=replace(spec.display, detach=True))
    usual, found = (make_plan(each, PATH).hosts[0] for each in (spec, changed))
    names = {"HVD_SERVER_TIMEOUT", "HVD_SNAPSHOT_FD", *(["HVD_SNAPSHOT_DIR"] if size == 2 else [])}
    assert found.environment.keys() - usual.environment.keys() == names
    assert found.environment["HVD_SERVER_TIMEOUT"] == "90.0"


@pytest.fixture
def mixed(spec: JobSpec) -> JobSpec:
    """Two workers here, two on another host."""
    return with_fields(
        spec,
        size=4,
        hosts=(Host("localhost", 2), Host("server1", 2)),
        command=("/here/python", "-c", "1"),
        remote=Remote(frozenset({"server1"}), ("/there/python", "-c", "1"), "/there/python"),
        forwarded={b"NCCL_DEBUG": b"INFO"},
    )


def test_another_host_has_its_own_command_and_only_what_is_forwarded(mixed: JobSpec) -> None:
    (mixed.workers.directory / "python").touch(0o755)
    own = PATH | {b"HOME": b"/home/me", b"PYTHONPATH": b"/src"}
    here, there = make_plan(with_fields(mixed, command=("./python", "-c", "1")), own).hosts
    assert (here.way, here.agent, here.command[0]) == (THIS_MACHINE, None, "./python")
    assert (there.agent, there.command[0], there.program) == ("/there/python", "/there/python", THERE)
    assert there.environment["PYTHONPATH"] == "(the shim there):/src"
    assert here.environment["PYTHONPATH"] == f"{FOLDER}:/src"
    assert "HOME" not in there.environment
    assert here.environment["NCCL_DEBUG"] == there.environment["NCCL_DEBUG"] == "INFO"
    assert here.environment["MASTER_ADDR"] == there.environment["MASTER_ADDR"] == LATER
    assert there.removed == ()


def test_a_program_that_only_other_hosts_need_is_not_looked_for_here(mixed: JobSpec) -> None:
    elsewhere = with_fields(mixed, size=2, hosts=(Host("server1", 2),), command=("no-such-program",))
    assert [host.program for host in make_plan(elsewhere, PATH).hosts] == [THERE]


@pytest.mark.parametrize(
    ("change", "way"),
    [
        ({}, "over SSH"),
        ({"users": {"server1": "me", "other": "you"}}, "over SSH as me"),
        ({"ssh_port": 2222}, "over SSH, port 2222"),
        (
            {"users": {"server1": "me"}, "ssh_port": 2222, "ssh_identity_file": Path("/my key")},
            "over SSH as me, port 2222, with the key '/my key'",
        ),
    ],
)
def test_the_plan_has_the_way_to_another_host(mixed: JobSpec, change: dict[str, object], way: str) -> None:
    changed = with_fields(mixed, **change)
    assert explain_way(changed, "server1") == way
    assert explain_way(changed, "localhost") == THIS_MACHINE


def test_the_plan_shows_how_the_agent_of_another_host_is_started(mixed: JobSpec) -> None:
    (mixed.workers.directory / "python").touch(0o755)
    prefixed = with_fields(mixed, command=("./python", "-V"), prefix="export API_KEY=hunter2")
    text = render_plan(make_plan(prefixed, PATH))
    assert "\nserver1: over SSH\n  agent      /there/python, after 'export API_KEY=***'\n" in text
    assert "the environment of a login there" in text.partition("server1: ")[2]
    assert "  program    (looked for there)\n" in text


@pytest.mark.parametrize(
    ("bind_to", "shown"), [(BindTo.NONE, "nothing"), (BindTo.CORE, "a core each"), (BindTo.NUMA, "a NUMA node each")]
)
def test_the_plan_has_the_binding_of_workers(spec: JobSpec, bind_to: BindTo, shown: str) -> None:
    assert f"  bound to   {shown}\n" in render_plan(make_plan(with_fields(spec, bind_to=bind_to), PATH))


@pytest.mark.parametrize(
    ("change", "environment", "script", "start"),
    [
        ({}, {}, "import torch", "forked"),
        ({"command": ("python3", "-m", "train")}, {}, "", "forked"),
        ({"command": ("python3", "gone.py")}, {}, "", "forked"),
        ({"prefork": False}, {}, "", "executed (--no-prefork)"),
        ({"command": ("sh", "train.py")}, {}, "", "executed (not a plain Python command)"),
        ({}, {b"MKL_NUM_THREADS": b"4"}, "", "executed (MKL_NUM_THREADS is set)"),
        ({}, {}, "os.environ['OMP_PROC_BIND'] = '1'", "executed (the script names OMP_PROC_BIND, "),
        ({"command": ("python3", "-m", "train")}, {}, "'LD_PRELOAD'", "executed (the script names LD_PRELOAD, "),
    ],
)
def test_the_plan_has_the_way_of_starting_with_its_reason(
    spec: JobSpec, change: dict[str, object], environment: dict[bytes, bytes], script: str, start: str
) -> None:
    (spec.workers.directory / "train.py").write_text(script)
    changed = with_fields(spec, **{"command": PYTHON, **change})
    assert explain_start(changed, changed.workers.command, environment).startswith(start)


def test_the_plan_is_a_table_and_a_part_for_each_host(spec: JobSpec) -> None:
    text = render_plan(make_plan(spec, PATH | {b"HVD_ODD": b"1"}))
    lines = text.splitlines()
    assert lines[2:6] == [
        "rank  local_rank  cross_rank  host       slot",
        "0     0           0           localhost  0",
        "1     1           0           localhost  1",
        "2     0           1           127.0.0.1  0",
    ]
    first, second = lines.index("localhost: this machine"), lines.index("127.0.0.1: this machine")
    for part in (lines[first:second], lines[second:]):
        assert "  command    sh -c true" in part
        assert f"  program    {shutil.which('sh')}" in part
        assert f"  directory  {spec.workers.directory}" in part
        assert "  start      executed (not a plain Python command)" in part
        assert "    HVD_ODD is removed" in part
        assert f"    MASTER_PORT={LATER}" in part
    assert "    OMP_NUM_THREADS=1" in lines[first:second]
    (own,) = [line for line in lines if line.startswith("    rank 1: ")]
    assert "HOROVOD_RANK=1" in own.split()
    assert not any(line.startswith("    rank 2: ") for line in lines)


def test_secrets_are_masked(spec: JobSpec) -> None:
    forwarded = {b"MY_TOKEN": b"hunter2", b"PLAIN": b"http://u:hunter2@h"}
    job = with_fields(spec, size=2, command=("sh", "--password", "hunter2"), forwarded=forwarded)
    (host,) = make_plan(job, PATH).hosts
    worker = replace(host.workers[0], environment={"HVD_SECRET": "hunter2"})
    text = render_plan(Plan(spec.workers.directory, (replace(host, workers=(worker, worker)),)))
    assert "hunter2" not in text
    assert text.count("***") == 5


@pytest.mark.parametrize("word", ["a b", "it's", "two\nlines", "\x1b[31m", "\udcff", "caf\xe9\n", "back\\slash\t'", ""])
def test_every_word_can_be_given_to_a_shell_again(spec: JobSpec, word: str) -> None:
    text = render_plan(make_plan(with_fields(spec, size=1, command=("printf", "%s", word)), PATH))
    (line,) = [line for line in text.splitlines() if line.startswith("  command")]
    assert line.isprintable()
    run = subprocess.run(["bash", "-c", line.removeprefix("  command    ")], capture_output=True, check=True)
    assert run.stdout == os.fsencode(word)


def test_an_elastic_job_shows_its_limits_and_the_world_of_its_first_round(spec: JobSpec) -> None:
    elastic = with_fields(
        spec, size=2, elasticity=Elasticity(1, max_size=3, recovery=Recovery(reset_limit=7)), lease_seconds=5.0
    )
    plan = make_plan(elastic, PATH)
    assert sum(len(host.workers) for host in plan.hosts) == 3
    first = plan.hosts[0]
    assert first.environment["HOROVOD_ELASTIC"] == "1"
    assert (first.environment["WORLD_SIZE"], first.environment["TORCHELASTIC_RESTART_COUNT"]) == ("3", "0")
    assert dict(plan.limits) == {
        "workers": "1 to 3, at the start at least 2",
        "hosts": "fixed",
        "resets": "at most 7 times",
        "restarts": "none",
        "lease": "5 s",
        "timeout": "600 s without enough slots",
        "cooldown": "10 to 100 s for a host that failed",
    }
    text = render_plan(plan)
    assert all(f"  {name:<9}  {value}\n" in text for name, value in plan.limits)
    assert make_plan(spec, PATH).limits == ()


def test_a_job_that_only_restarts_is_not_called_elastic(spec: JobSpec) -> None:
    restarts = Elasticity(2, 2, restarts=Restarts(3), continues_in_place=False)
    plan = make_plan(with_fields(spec, size=2, elasticity=restarts, lease_seconds=10.0), PATH)
    limits = dict(plan.limits)
    assert (limits["workers"], limits["restarts"]) == ("always 2", "of all workers, at most 3")
    assert "resets" not in limits
    text = render_plan(plan)
    assert "After a loss all workers are started again; these are its first workers, and their first ranks:\n" in text
    assert "elastic" not in text.replace("HOROVOD_ELASTIC", "")


def test_a_script_that_names_too_few_slots_is_an_error(spec: JobSpec) -> None:
    with pytest.raises(TooFewSlotsNowError, match="4 of the 9 slots"):
        make_plan(with_fields(spec, size=9, elasticity=Elasticity(1, script="./hosts")), PATH)
