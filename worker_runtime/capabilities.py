"""What this installation can do, asked the way Horovod's users ask.

What is "built" is what the workers' torch brings, since nothing is compiled here. There is no MPI underneath: gloo is
always there, NCCL where torch has it.
"""

import torch
import torch.distributed as dist

from worker_runtime.errors import NotInitializedError
from worker_runtime.runtime import RUNTIME


def mpi_threads_supported() -> bool:
    """Whether MPI may be used by several threads; always an error, since there is no MPI.

    Raises:
        ValueError: MPI is not enabled, or Horovod has not been initialized.
    """
    if not RUNTIME.is_initialized:
        raise NotInitializedError
    raise ValueError("Horovod MPI is not enabled; mpi_enabled() tells.")


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
