"""Which allocation hvdrun runs in, if any."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rendezvous.bootstrap import JOB

if TYPE_CHECKING:
    from hvdrun.spec.allocation import Allocation

_MARKS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "K_MPI_JOB_ROLE")


def find_allocation(environment: Mapping[str, str], *, is_elastic: bool) -> "Allocation | None":
    """The allocation; None where there is none, and in a worker, whose job has it.

    Raises:
        HvdrunError: what a scheduler says cannot be understood.
    """
    if JOB in environment or not any(mark in environment for mark in _MARKS):
        return None
    from hvdrun.allocation.hostfiles import find_lsf, find_mpijob, find_pbs  # noqa: PLC0415 - few jobs have a scheduler
    from hvdrun.allocation.slurm import find_slurm  # noqa: PLC0415 - the same

    return (
        find_slurm(environment)
        or find_pbs(environment)
        or find_lsf(environment)
        or find_mpijob(environment, is_elastic=is_elastic)
    )
