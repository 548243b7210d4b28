"""Allocations that a scheduler writes into a file: PBS, LSF, and the MPIJob of Kubeflow's MPI operator."""

from collections.abc import Mapping
from pathlib import Path

from hvdrun.spec.allocation import Allocation
from hvdrun.spec.discovery import read_hostfile

MPI_FOLDER = Path("/etc/mpi")


def find_pbs(environment: Mapping[str, str]) -> Allocation | None:
    """PBS Pro, OpenPBS and Torque name a host once for each of its slots.

    Raises:
        HostFileError: the file cannot be read.
    """
    return _find_file(environment, "PBS job", "PBS_JOBID", "PBS_NODEFILE")


def find_lsf(environment: Mapping[str, str]) -> Allocation | None:
    """LSF does the same.

    Raises:
        HostFileError: the file cannot be read.
    """
    return _find_file(environment, "LSF job", "LSB_JOBID", "LSB_DJOB_HOSTFILE")


def find_mpijob(
    environment: Mapping[str, str], *, is_elastic: bool = False, folder: Path = MPI_FOLDER
) -> Allocation | None:
    """The workers' pods of an MPIJob, in its launcher's pod, of which the operator tells in a variable.

    The script names the pods that run, without slots; the file all that are planned, with their slots.

    Raises:
        HostFileError: the file cannot be read.
    """
    path, script = folder / "hostfile", folder / "discover_hosts.sh"
    if environment.get("K_MPI_JOB_ROLE") != "launcher" or not path.exists():
        return None
    return Allocation(
        "MPIJob", read_hostfile(path).hosts, script=str(script) if is_elastic and script.exists() else None
    )


def _find_file(environment: Mapping[str, str], kind: str, number: str, variable: str) -> Allocation | None:
    path = environment.get(variable)
    if not path or number not in environment:
        return None
    return Allocation(f"{kind} {environment[number]}", read_hostfile(Path(path)).hosts)
