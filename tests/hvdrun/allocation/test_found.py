"""Which allocation counts, and what a request makes of it."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from hvdrun.allocation import found as hostfiles
from hvdrun.allocation.found import find_allocation
from hvdrun.errors import HvdrunError, UsageError
from hvdrun.options.flags import parse
from hvdrun.options.request import make_job
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.remote import Allocation, AllocationError
from rendezvous.core.model import Host

SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "4(x2)", "PATH": ""}


def make(words: str, environment: Mapping[str, str]) -> JobSpec:
    typed, command = parse(shlex.split(words))
    return make_job(typed, command, environment, lambda _: 1)


def slots(spec: JobSpec) -> list[str]:
    return [f"{host.name}:{host.slots}" for host in spec.workers.hosts]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The environments of the schedulers that write files."""
    (tmp_path / "nodes").write_text("a\na\nb\n", encoding="utf-8")
    mpi = tmp_path / "mpi"
    mpi.mkdir()
    (mpi / "hostfile").write_text(
        "job-worker-0.job.ns.svc slots=4\njob-worker-1.job.ns.svc slots=4\n", encoding="utf-8"
    )
    (mpi / "discover_hosts.sh").write_text("#!/bin/sh\necho job-worker-0.job.ns.svc\n", encoding="utf-8")
    monkeypatch.setattr(hostfiles, "MPI_FOLDER", mpi)
    return {
        "PBS job 5": {"PBS_JOBID": "5", "PBS_NODEFILE": str(tmp_path / "nodes")},
        "LSF job 6": {"LSB_JOBID": "6", "LSB_DJOB_HOSTFILE": str(tmp_path / "nodes")},
        "MPIJob": {"K_MPI_JOB_ROLE": "launcher"},
    }


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("PBS job 5", ["a:2", "b:1"]),
        ("LSF job 6", ["a:2", "b:1"]),
        ("MPIJob", ["job-worker-0.job.ns.svc:4", "job-worker-1.job.ns.svc:4"]),
    ],
)
def test_the_hosts_of_a_scheduler_s_file_are_used(
    files: dict[str, dict[str, str]], name: str, found: list[str]
) -> None:
    spec = make("python train.py", files[name])
    assert slots(spec) == found
    (remark,) = spec.display.remarks
    assert remark.startswith(f"{name}: {spec.workers.size} slots on {found[0]}, {found[1]}.")


@pytest.mark.parametrize(
    ("kind", "number", "variable"),
    [("PBS job", "PBS_JOBID", "PBS_NODEFILE"), ("LSF job", "LSB_JOBID", "LSB_DJOB_HOSTFILE")],
)
def test_a_scheduler_s_file_that_cannot_be_read_is_named_with_its_variable(
    kind: str, number: str, variable: str, tmp_path: Path
) -> None:
    path = tmp_path / "nodes"
    begin = f"the hosts of {kind} 5 are not known: {variable} is '{path}', "
    end = "; name them with -H or --hostfile."
    for text, fault in (
        (None, "which cannot be read: No such file or directory"),
        ("a\nb c d\n", "whose line 2 cannot be read: "),
    ):
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(AllocationError) as caught:
            find_allocation({number: "5", variable: str(path)}, is_elastic=False)
        assert str(caught.value).startswith(begin + fault)
        assert str(caught.value).endswith(end)


def test_an_elastic_mpijob_asks_the_operator_s_script(files: dict[str, dict[str, str]]) -> None:
    spec = make("--min-np 2 python train.py", files["MPIJob"])
    assert spec.limits.elasticity is not None
    assert spec.limits.elasticity.script is not None
    assert Path(spec.limits.elasticity.script).name == "discover_hosts.sh"
    assert (spec.workers.size, spec.limits.elasticity.min_size, spec.limits.elasticity.slots_per_host) == (8, 2, 4)


@pytest.mark.parametrize("environment", [{"K_MPI_JOB_ROLE": "worker"}, {"PBS_NODEFILE": ""}, {}])
def test_without_an_allocation_nothing_is_found(environment: dict[str, str]) -> None:
    assert find_allocation(environment, is_elastic=False) is None


def test_a_missing_hostfile_is_reported() -> None:
    with pytest.raises(HvdrunError, match="/no/such/file"):
        make("python train.py", {"PBS_JOBID": "5", "PBS_NODEFILE": "/no/such/file"})


@pytest.mark.parametrize(
    ("words", "size", "found"),
    [
        ("python x", 2, ["n1:1", "n2:1"]),
        ("-np 5 python x", 5, ["n1:3", "n2:3"]),
        ("-np 1 python x", 1, ["n1:1", "n2:1"]),
        ("--min-np 1 python x", 2, ["n1:1", "n2:1"]),
        ("-np 4 -H a:4 python x", 4, ["a:4"]),
        ("-np 2 --host-discovery-script ./x python x", 2, []),
    ],
)
def test_options_of_the_command_line_come_before_the_allocation(words: str, size: int, found: list[str]) -> None:
    spec = make(words, SLURM)
    assert (spec.workers.size, slots(spec)) == (size, found)


def test_more_workers_than_the_requested_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match="do not fit into the 2 slots"):
        make("-np 5 python x", {**SLURM, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"})


def test_a_worker_does_not_take_its_job_s_allocation() -> None:
    assert slots(make("python x", {**SLURM, "HVD_JOB": "1"})) == ["localhost:1"]


@pytest.mark.parametrize("option", ["-p 22", "--ssh-accept-new"])
def test_options_of_ssh_with_another_command_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option.split(maxsplit=1)[0]} is for hvdrun's own SSH"):
        make(f"-np 2 -H a,b {option} --rsh blaunch python x", {})


def test_a_long_list_of_hosts_is_shortened() -> None:
    found = Allocation("Slurm job 1", tuple(Host(f"n{n}", 2) for n in range(9)))
    assert found.describe() == "Slurm job 1: 18 slots on n0:2, n1:2, n2:2, and 6 more hosts."
    assert dataclasses.replace(found, hosts=(Host("n", 1),)).describe() == "Slurm job 1: 1 slot on n:1."
