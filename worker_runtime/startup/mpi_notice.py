"""Says that MPI does not know this job, when a worker of hvdrun imports mpi4py."""

import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder

_SIZE = "HOROVOD_SIZE"
_MODULE = "mpi4py.MPI"


class _Listener(MetaPathFinder):
    """Finds no module. It prints the notice when Python looks for mpi4py.

    Args:
        size: the number of workers, for the sentence.
    """

    def __init__(self, size: str) -> None:
        self._size = size

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Say it once, when the module is imported.

        Message: mpi4py does not know this job: in MPI each worker is rank 0 of 1; start the script with mpirun -np
            SIZE, or do not import mpi4py
        Cause: The script imports mpi4py, but hvdrun started it, not MPI.
        Remedy: Start it with mpirun, or do not import mpi4py.
        """
        if fullname == _MODULE and self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.stderr.write(f"hvdrun: {explain(self._size)}.\n")


def explain(size: str) -> str:
    """The notice to a script that imports mpi4py in a job of this size."""
    return (
        "mpi4py does not know this job: in MPI each worker is rank 0 of 1; start the script with "
        f"mpirun -np {size}, or do not import mpi4py"
    )


def listen(environment: Mapping[str, str]) -> None:
    """Print the notice when this process imports mpi4py, if the job has several workers. A second call does nothing."""
    size = environment.get(_SIZE, "1")
    is_known = _MODULE in sys.modules or any(isinstance(finder, _Listener) for finder in sys.meta_path)
    if size != "1" and not is_known:
        sys.meta_path.insert(0, _Listener(size))
