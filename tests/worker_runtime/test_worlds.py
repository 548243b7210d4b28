"""What other launchers' variables say of a process."""

import pytest

from worker_runtime.errors import ForeignRankError, ForeignWorldError
from worker_runtime.worlds import Master, OneHost, World, find_world

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
MET = Master("10.0.0.1", 4711)


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        (TORCHRUN, World("torchrun", 1, 4, Master("a", 29500))),
        (MPIRUN, World("mpirun", 1, 4, OneHost("mpirun-job.1"))),
        (MPIRUN | MASTER, World("mpirun", 1, 4, Master("10.0.0.1", 4711))),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"} | MASTER, World("mpirun", 1, 4, Master("10.0.0.1", 4711))),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"} | MASTER, World("mpirun", 1, 4, MET)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"} | MASTER, World("horovodrun", 1, 4, MET)),
        (SRUN, World("srun", 1, 4, OneHost("srun-77.0"))),
        (SRUN | {"SLURM_STEP_NUM_NODES": "2"} | MASTER, World("srun", 1, 4, Master("10.0.0.1", 4711))),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, World("srun", 1, 2, OneHost("srun-77.0"))),
        (SRUN | TORCHRUN, World("torchrun", 1, 4, Master("a", 29500))),
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
    assert str(Master("2001:db8::1", 4711)) == "[2001:db8::1]:4711"
