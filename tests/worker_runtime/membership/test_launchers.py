"""Other launchers' worlds: their variables, and how their members meet without hvdrun."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.ports import reserve_port
from worker_runtime.errors import ForeignRankError, ForeignWorldError, MeetingError
from worker_runtime.membership.foreign import FileStore, ForeignJob, find_own_address
from worker_runtime.membership.launchers import OneHost, World, find_world
from worker_runtime.rendezvous import Endpoint

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "job.1",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
}
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4711"}
MET = Endpoint("10.0.0.1", 4711)


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        (TORCHRUN, World("torchrun", 1, 4, Endpoint("a", 29500))),
        (MPIRUN, World("mpirun", 1, 4, OneHost("mpirun-job.1"))),
        (MPIRUN | MASTER, World("mpirun", 1, 4, Endpoint("10.0.0.1", 4711))),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"} | MASTER, World("mpirun", 1, 4, Endpoint("10.0.0.1", 4711))),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"} | MASTER, World("mpirun", 1, 4, MET)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"} | MASTER, World("horovodrun", 1, 4, MET)),
        (SRUN, World("srun", 1, 4, OneHost("srun-77.0"))),
        (SRUN | {"SLURM_STEP_NUM_NODES": "2"} | MASTER, World("srun", 1, 4, Endpoint("10.0.0.1", 4711))),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, World("srun", 1, 2, OneHost("srun-77.0"))),
        (SRUN | TORCHRUN, World("torchrun", 1, 4, Endpoint("a", 29500))),
    ],
)
def test_a_world_of_several_is_found_with_the_place_to_meet(variables: dict[str, str], world: World) -> None:
    assert find_world(variables) == world


@pytest.mark.parametrize(
    "variables",
    [
        {},
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1"},
        MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1"},
        SRUN | {"SLURM_NTASKS": "1"},
        SRUN | {"SLURM_STEP_ID": "4294967291"},  # a batch script: its process is the only one
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4"},  # within an allocation, not started by srun
    ],
)
def test_a_process_that_is_alone_may_train_alone(variables: dict[str, str]) -> None:
    assert find_world(variables) is None


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, "torchrun"),
        ({"WORLD_SIZE": "4"}, "torchrun"),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun"),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, "mpirun"),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, "horovodrun"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "2"}, "srun"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "2", "MASTER_ADDR": "a", "MASTER_PORT": "none"}, "srun"),
    ],
)
def test_a_world_without_a_place_to_meet_is_refused_and_never_trains_alone(
    variables: dict[str, str], launcher: str
) -> None:
    with pytest.raises(ForeignWorldError, match=f"{launcher}.*MASTER_ADDR"):
        find_world(variables)


def test_a_rank_that_its_world_cannot_have_is_refused() -> None:
    with pytest.raises(ForeignRankError, match="rank 5 of 2, but the ranks are 0 to 1"):
        find_world(TORCHRUN | {"RANK": "5", "WORLD_SIZE": "2"})


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert str(Endpoint("2001:db8::1", 4711)) == "[2001:db8::1]:4711"


LIMIT = timedelta(seconds=60)
SCRIPT = """
import worker_runtime.torch as hvd
hvd.init()
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size(), hvd.allgather_object(hvd.rank()))
hvd.shutdown()
hvd.init()
print(hvd.allgather_object("again"))
"""
EXPECTED = {rank: f"{rank} 2 {rank} 2 1 [0, 1]\n['again', 'again']\n" for rank in range(2)}


def run_members(members: list[Mapping[str, str]], folder: Path) -> list[str]:
    """Run the script once for each member's variables; what each printed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "HOROVOD_"))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**own, "TMPDIR": str(folder), **member},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for member in members
    ]
    try:
        outputs = [process.communicate(timeout=110) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return [output for output, _ in outputs]


def make_member(launcher: str, rank: int) -> dict[str, str]:
    """The variables of a member, without the address where the members meet."""
    if launcher == "srun":
        return {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"}
    names = {"RANK": str(rank), "SIZE": "2", "LOCAL_SIZE": "2"}
    return {"PMIX_NAMESPACE": "prterun-test@1", **{f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()}}


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_members_meet_in_a_file_that_does_not_stay_or_at_the_master_that_the_user_named(
    tmp_path: Path, launcher: str
) -> None:
    with reserve_port() as port:
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if launcher == "srun" else {}
        outputs = run_members([make_member(launcher, rank) | master for rank in range(2)], tmp_path)
    assert dict(enumerate(outputs)) == EXPECTED
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def job_as(rank: int, limit: timedelta = LIMIT) -> Iterator[ForeignJob]:
    """A member of a world of two, both on this host, as this one process plays them."""
    home = OneHost("mpirun-a/b")
    world = World("mpirun", rank, 2, home)
    with closing(ForeignJob(world, FileStore(world, home, limit), limit)) as job:
        yield job


def test_a_member_may_come_before_rank_0(place: Path) -> None:
    with ThreadPoolExecutor() as threads, job_as(0) as first, job_as(1) as other:
        early = threads.submit(other.await_sequencer, 1)
        early_key = threads.submit(other.share_key, 1)
        key = first.share_key(1)
        assert first.await_sequencer(1) == early.result(LIMIT.total_seconds())
        assert early_key.result(LIMIT.total_seconds()) == key
        assert len(key) == 32
        assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
        other.clear_store()  # does not take from others what is not its own
        assert len(list(place.iterdir())) == 2
        first.clear_store()
        assert list(place.iterdir()) == []


@pytest.mark.usefixtures("place")
def test_every_generation_has_its_own_key_and_the_same_sequencer() -> None:
    with job_as(0) as first:
        keys, sequencers = [], []
        for generation in (1, 2):
            keys.append(first.share_key(generation))
            sequencers.append(first.await_sequencer(generation))
        assert keys[0] != keys[1]
        assert sequencers[0] == sequencers[1]
        with socket.create_connection((sequencers[0].address, sequencers[0].port), timeout=60):
            pass


@pytest.mark.usefixtures("place")
def test_a_rank_0_that_never_comes_is_named() -> None:
    with (
        job_as(1, timedelta(seconds=0.1)) as other,
        pytest.raises(MeetingError, match=r"mpirun started could not meet.*rank 0 did not start within 0.1 s"),
    ):
        other.await_sequencer(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
def test_a_link_of_another_user_to_a_file_of_the_own_user_is_not_read(place: Path) -> None:
    with job_as(0) as first, job_as(1, timedelta(seconds=0.1)) as other:
        first.share_key(1)
        (link,) = place.iterdir()
        link.symlink_to(link.rename(place / "elsewhere"))
        os.lchown(link, 1, 1)
        with pytest.raises(MeetingError):
            other.share_key(1)


@pytest.mark.usefixtures("place")
def test_generations_do_not_read_each_others_files() -> None:
    with job_as(0) as first, job_as(1, timedelta(seconds=0.1)) as other:
        first.share_key(1)
        first.await_sequencer(1)
        with pytest.raises(MeetingError):
            other.await_sequencer(2)


def test_a_rank_s_address_is_that_of_its_route_to_the_master() -> None:
    assert find_own_address(Endpoint("127.0.0.1", 1)) == "127.0.0.1"
