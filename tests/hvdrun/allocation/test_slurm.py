"""Hosts and slots from Slurm's variables; scontrol is a stand-in. `tests/system/hosts/test_slurm.py` has real ones."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hvdrun.allocation.slurm import Node, find_slurm, leave_steps, read_gpus, write_step
from hvdrun.errors import UsageError
from hvdrun.spec.remote import AllocationError

JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2),2",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
DETAILS = (
    "JOB_GRES=gpu:5 Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0,3) Nodes=n3 CPU_IDs=0 Mem=0 "
    "GRES=nic:4,gpu:1(IDX:0) MinCPUsNode=1"
)


def find(environment: Mapping[str, str], path: str = "") -> list[int]:
    found = find_slurm({**JOB, "PATH": path, **environment})
    assert found is not None
    assert [host.name for host in found.hosts] == ["n1", "n2", "n3"]
    return [host.slots for host in found.hosts] if found.is_sized else []


@pytest.fixture
def scontrol(tmp_path: Path) -> str:
    """A folder for PATH with a scontrol that reports GPUs."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n[ "$5" = 17 ] && echo "{DETAILS}"\n', encoding="utf-8")
    (tmp_path / "scontrol").chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("environment", "slots"),
    [
        ({"SLURM_NTASKS": "5"}, [2, 2, 1]),
        ({"SLURM_NTASKS_PER_NODE": "2"}, [2, 2, 1]),
        ({}, []),
        ({"SLURM_GPUS_ON_NODE": "4"}, [4, 4, 4]),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_NTASKS": "5"}, [2, 2, 1]),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_GPUS_ON_NODE": "4"}, [4, 4, 4]),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "3"}, [3, 3, 3]),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "5"}, [2, 2, 1]),  # salloc
    ],
)
def test_slots_are_tasks_where_tasks_were_requested_else_gpus(environment: dict[str, str], slots: list[int]) -> None:
    assert find(environment) == slots


def test_scontrol_reports_the_gpus_of_each_host(scontrol: str) -> None:
    assert find({"SLURM_GPUS_ON_NODE": "7"}, scontrol) == [2, 2, 1]
    assert read_gpus("JOB_GRES=(null) Nodes=n1 CPU_IDs=0 Mem=0 GRES= MinCPUs") == {"n1": 0}


def test_no_allocation_is_found_outside_of_one() -> None:
    assert find_slurm({"SLURM_CONF": "/etc/slurm.conf"}) is None


def test_several_hvdruns_under_srun_are_refused() -> None:
    with pytest.raises(UsageError, match="srun has started 8 hvdruns"):
        find_slurm({**JOB, "SLURM_STEP_NUM_TASKS": "8"})


def test_a_heterogeneous_job_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Slurm job 17 is heterogeneous, with 2 components, .* -H"):
        find_slurm({**JOB, "SLURM_HET_SIZE": "2"})


def test_variables_that_cannot_be_read_are_one_sentence() -> None:
    with pytest.raises(AllocationError, match=r"Slurm job 17 are not known: SLURM_JOB_NODELIST is 'n\['; .* -H"):
        find_slurm({**JOB, "SLURM_JOB_NODELIST": "n["})


def test_a_step_has_all_cpus_and_gpus_of_its_host() -> None:
    words = write_step("n1", Node(cpus=8, gpus=2))
    assert {"--nodelist=n1", "--cpus-per-task=8", "--gpus=2", "--overlap", "--unbuffered"} < set(words)
    assert "--gres=none" in write_step("n1", Node(cpus=8, gpus=0))


def test_options_for_tasks_do_not_reach_a_step() -> None:
    before = {**JOB, "SLURM_NTASKS_PER_NODE": "2", "SBATCH_X": "1", "SRUN_CPUS_PER_TASK": "2", "HOME": "/h"}
    assert set(leave_steps(before)) == {*JOB, "HOME"} - {"SLURM_TASKS_PER_NODE"}
