"""How a worker is executed, and what is said where it cannot be."""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.agent.spawn import ExecSpawner, Spawned, WorkerEnvironment, explain_failure, find_executable, start_worker
from hvdrun.errors import CommandNotExecutableError, CommandNotFoundError
from hvdrun.processes.binding import BindTo, choose_cpus, parse_cpus, read_topology
from hvdrun.processes.child import StandardStreams
from rendezvous.core.model import Endpoint, Round
from rendezvous.wire.orders import Begin
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.hvdrun.agent.jobs import JOB, make_begin, make_launches
from tests.hvdrun.agent.sleepers import files_left
from tests.strangers import as_stranger
from tests.waiting import in_loop

LAUNCH = make_launches(2)[1]


def describe(directory: Path, *command: str, **variables: str) -> Begin:
    return make_begin(directory, *command, HOROVOD_RANK="77", NAME="\udcff", **variables)


NETWORKS = {"NCCL_SOCKET_IFNAME": "=eth1", "GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1"}


def surround(begin: Begin) -> WorkerEnvironment:
    return WorkerEnvironment(begin, Path("/run/agent.sock"))


def find_networks(begin: Begin) -> dict[str, str]:
    environment = surround(begin).of(LAUNCH)
    found = {name: environment.get(name.encode()) for name in NETWORKS}
    return {name: os.fsdecode(value) for name, value in found.items() if value is not None}


def test_communication_libraries_get_the_chosen_interface(tmp_path: Path) -> None:
    begin = describe(tmp_path, "true")
    assert find_networks(replace(begin, interface="eth1")) == NETWORKS
    assert find_networks(begin) == {}


@pytest.mark.parametrize("name", NETWORKS)
def test_an_interface_that_the_user_has_set_is_left_alone(name: str, tmp_path: Path) -> None:
    theirs = replace(describe(tmp_path, "true", **{name: "ib0"}), interface="eth1")
    assert find_networks(theirs)[name] == "ib0"
    assert all("eth1" in value for other, value in find_networks(theirs).items() if other != name)


def spawn(begin: Begin) -> Spawned:
    return asyncio.run(ExecSpawner(begin, surround(begin)).spawn(LAUNCH))


def read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def test_a_worker_leads_a_session_and_has_both_streams_and_its_exit_code(tmp_path: Path) -> None:
    spawned = spawn(describe(tmp_path, "sh", "-c", "ps -o sid= -p $$; echo err >&2; exit 7"))
    assert (int(read(spawned.stdout)), read(spawned.stderr)) == (spawned.pid, b"err\n")
    assert os.waitstatus_to_exitcode(os.waitpid(spawned.pid, 0)[1]) == 7


def test_a_worker_is_bound_as_the_job_requests_and_this_process_is_not(tmp_path: Path) -> None:
    own = os.sched_getaffinity(0)
    cpus = choose_cpus(read_topology(own), BindTo.CORE, LAUNCH.assignment.local_rank)
    assert cpus is not None
    begin = describe(tmp_path, "sh", "-c", "grep Cpus_allowed_list /proc/$$/status")
    spawned = spawn(replace(begin, workers=replace(begin.workers, bind_to="core")))
    text = read(spawned.stdout)
    os.close(spawned.stderr)
    os.waitpid(spawned.pid, 0)
    assert parse_cpus(text.decode().partition(":")[2].strip()) == cpus
    assert os.sched_getaffinity(0) == own


def test_a_worker_has_the_job_s_environment_and_its_own_numbers(tmp_path: Path) -> None:
    found = surround(describe(tmp_path, "true")).of(LAUNCH)
    assert found[b"NAME"] == b"\xff"
    assert (found[b"HOROVOD_RANK"], found[b"HOROVOD_SIZE"]) == (b"1", b"2")
    assert (found[b"HVD_JOB"], found[b"HVD_SLOT"], found[b"HVD_INCARNATION"]) == (JOB.encode(), b"a:1", b"1")
    assert found[b"HVD_SOCKET"] == b"/run/agent.sock"


def test_a_worker_has_the_world_of_its_round(tmp_path: Path) -> None:
    begin = describe(tmp_path, "true")
    launch = replace(LAUNCH, round=Round(3, 0, 1, Endpoint("127.0.0.1", 29500)))
    environment = surround(begin).of(launch)
    assert (environment[b"RANK"], environment[b"MASTER_PORT"]) == (b"1", b"29500")
    assert (environment[b"TORCHELASTIC_RESTART_COUNT"], environment[b"GROUP_WORLD_SIZE"]) == (b"3", b"1")


def test_a_worker_that_is_started_alone_has_no_world_but_knows_that_it_is_started_again(tmp_path: Path) -> None:
    begin = describe(tmp_path, "true", HOROVOD_ELASTIC="1")
    environment = surround(begin).of(replace(LAUNCH, worker=replace(LAUNCH.worker, incarnation=3)))
    assert environment[b"TORCHELASTIC_RESTART_COUNT"] == b"2"
    assert environment[b"TORCHELASTIC_RUN_ID"] == JOB.rpartition("/")[2].encode()
    assert (environment[b"ROLE_NAME"], environment[b"TORCHELASTIC_USE_AGENT_STORE"]) == (b"default", b"False")
    assert b"TORCHELASTIC_ERROR_FILE" in environment
    assert (environment[b"HOROVOD_ELASTIC"], environment[b"HOROVOD_RANK"]) == (b"1", b"1")
    assert environment.keys().isdisjoint({b"RANK", b"WORLD_SIZE", b"MASTER_ADDR", b"MASTER_PORT"})


def test_the_worker_that_reads_gets_what_is_written(tmp_path: Path) -> None:
    begin = describe(tmp_path, "cat")
    spawned = spawn(replace(begin, workers=replace(begin.workers, stdin_rank=1)))
    assert spawned.stdin is not None
    os.write(spawned.stdin, b"typed")
    os.close(spawned.stdin)
    assert read(spawned.stdout) == b"typed"
    os.close(spawned.stderr)
    os.waitpid(spawned.pid, 0)


def test_a_command_that_cannot_be_executed_holds_no_descriptors(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/no/such/interpreter\n")
    (tmp_path / "train.sh").chmod(0o755)
    before = len(list_settled_descriptors())
    with pytest.raises(CommandNotExecutableError):
        spawn(describe(tmp_path, "./train.sh"))
    assert len(list_descriptors()) == before


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        ("train", "/nowhere:{}/bin", "{}/bin/train"),
        ("train", "bin", "{}/bin/train"),
        ("./bin/train", "", "{}/bin/train"),
        ("/bin/sh", "", "/bin/sh"),
    ],
)
def test_a_command_is_found_on_the_worker_s_path_as_seen_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, path: str, found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/train").touch(0o755)
    environment = {b"PATH": os.fsencode(path.format(tmp_path))}
    assert find_executable(name, str(tmp_path), environment) == found.format(tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "places"),
    [
        ("./train", b"/bin", "looked in {}"),
        ("train", b"/one:/two", "looked in /one, /two"),
        ("train", b"", "PATH is empty"),
    ],
)
def test_a_missing_command_is_reported_with_the_searched_places(
    tmp_path: Path, name: str, path: bytes, places: str
) -> None:
    with pytest.raises(CommandNotFoundError, match=rf"'{name}' was not found.*: {places.format(tmp_path)}") as caught:
        find_executable(name, str(tmp_path), {b"PATH": path})
    assert caught.value.exit_code == 127


def test_a_worker_without_a_path_has_the_system_s_own(tmp_path: Path) -> None:
    assert find_executable("sh", str(tmp_path), {}) == "/bin/sh"


@pytest.mark.parametrize("name", ["sh", "./train"])
def test_a_closed_working_directory_is_named_and_not_the_program(tmp_path: Path, name: str) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with as_stranger(tmp_path), pytest.raises(CommandNotExecutableError, match=r"directory .* may not be entered"):
        find_executable(name, str(tmp_path / "closed"), {})


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOEXEC, "no #! line"), (errno.EACCES, "Permission denied"), (errno.ENOENT, "No such file")],
)
def test_a_command_that_the_kernel_refuses_gives_one_sentence(tmp_path: Path, number: int, reason: str) -> None:
    error = explain_failure(OSError(number, ""), "/work/train", str(tmp_path))
    assert error.exit_code == 126
    assert str(error).startswith("the command '/work/train' cannot be executed: ")
    assert reason in str(error)


def test_a_script_whose_interpreter_is_missing_is_named_with_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/python\r\n")
    error = explain_failure(OSError(errno.ENOENT, ""), str(script), str(tmp_path))
    assert str(error).endswith("cannot be executed: the program of its #! line, or its loader, does not exist.")


def test_a_working_directory_that_does_not_exist_here_is_named(tmp_path: Path) -> None:
    error = explain_failure(OSError(errno.ENOENT, ""), "/bin/sh", str(tmp_path / "gone"))
    assert f"the working directory '{tmp_path}/gone' does not exist here" in str(error)


@pytest.mark.parametrize("count", range(6))
@in_loop
async def test_streams_that_cannot_all_be_opened_are_closed(count: int) -> None:
    async def start(_: StandardStreams) -> int:
        raise AssertionError

    with files_left(count), pytest.raises(OSError, match="Too many"):
        await start_worker(start, reads=True)
