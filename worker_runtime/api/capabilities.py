"""What this installation can do, asked the way Horovod's users ask.

What is "built" is what the workers' torch brings, since nothing is compiled here. There is no MPI underneath: gloo is
always there, NCCL where torch has it.
"""

import os
from typing import Any

import torch
import torch.distributed as dist

from worker_runtime.errors import NotInitializedError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.membership.worlds import join_mpi_world


def mpi_threads_supported() -> bool:
    """Whether MPI may be used by several threads: the program's own, which mpi4py reaches.

    Raises:
        ValueError: there is no such MPI, or its world is not the job, or Horovod has not been initialized.
    """
    if not RUNTIME.is_initialized:
        raise NotInitializedError
    mpi: Any = join_mpi_world(os.environ, RUNTIME.assignment, RUNTIME.shutdown, loads=True)
    if mpi is None:
        raise ValueError("Horovod MPI is not enabled: install mpi4py, and start the script with mpirun, to use MPI too")
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Whether workers communicate over MPI: never."""
    return False


def mpi_built() -> bool:
    """Whether MPI could be used: never."""
    return False


def gloo_enabled() -> bool:
    """Whether workers may communicate over gloo: always."""
    return True


def gloo_built() -> bool:
    """Whether gloo can be used: always, it is a part of torch."""
    return True


def nccl_built() -> int:
    """The version of NCCL as a number, 22105 for 2.21.5; 0 where torch has none."""
    if not dist.is_nccl_available():
        return 0
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    major, minor, patch = (*version, 0)[:3]
    return major * 10000 + minor * 100 + patch


def ddl_built() -> bool:
    """Whether IBM's DDL can be used: never."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL can be used: never."""
    return False


def cuda_built() -> bool:
    """Whether torch was built for CUDA; a device need not be there."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm; a device need not be there."""
    return torch.version.hip is not None
