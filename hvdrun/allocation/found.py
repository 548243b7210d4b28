"""Finds the allocation in which hvdrun runs.

PBS, LSF and the MPIJob of Kubeflow's MPI operator write the hosts into a file.
"""

from collections.abc import Mapping
from pathlib import Path

from hvdrun.errors import HostFileError
from hvdrun.spec.hosts import read_hostfile
from hvdrun.spec.remote import Allocation, AllocationError
from hvdrun.startup.paths import exists

MPI_FOLDER = Path("/etc/mpi")


def find_allocation(environment: Mapping[str, str], *, is_elastic: bool) -> Allocation | None:
    """The allocation; None where there is none.

    Raises:
        HvdrunError: a scheduler's variables or file cannot be read.
    """
    return (
        _find_slurm(environment)
        or _find_file(environment, "PBS job", "PBS_JOBID", "PBS_NODEFILE")
        or _find_file(environment, "LSF job", "LSB_JOBID", "LSB_DJOB_HOSTFILE")
        or find_mpijob(environment, is_elastic=is_elastic)
    )


def _find_slurm(environment: Mapping[str, str]) -> Allocation | None:
    if "SLURM_JOB_ID" not in environment:
        return None
    from hvdrun.allocation.slurm import find_slurm  # noqa: PLC0415 - few jobs have Slurm, and it imports subprocess

    return find_slurm(environment)


def find_mpijob(environment: Mapping[str, str], *, is_elastic: bool) -> Allocation | None:
    """The workers' pods of an MPIJob, in its launcher's pod, which the operator marks with a variable.

    The script names the running pods, without slots; the file names all planned pods, with their slots.

    Raises:
        HostFileError: the file cannot be read.
    """
    path, script = MPI_FOLDER / "hostfile", MPI_FOLDER / "discover_hosts.sh"
    if environment.get("K_MPI_JOB_ROLE") != "launcher" or not exists(path):
        return None
    if is_elastic and exists(script):
        return Allocation("MPIJob", read_hostfile(path).hosts, script=str(script))
    return Allocation("MPIJob", read_hostfile(path).hosts)


def _find_file(environment: Mapping[str, str], kind: str, number: str, variable: str) -> Allocation | None:
    """A file that names a host once for each of its slots, as PBS Pro, OpenPBS, Torque and LSF write it.

    Raises:
        AllocationError: the file cannot be read.
    """
    path = environment.get(variable)
    if not path or number not in environment:
        return None
    name = f"{kind} {environment[number]}"
    try:
        return Allocation(name, read_hostfile(Path(path)).hosts)
    except HostFileError as error:
        part = "which" if error.line is None else f"whose line {error.line}"
        raise AllocationError(name, variable, f"is {path!r}, {part} cannot be read: {error.reason}") from error
