"""What a PyTorch script imports: `import worker_runtime.torch as hvd`, or `import horovod.torch as hvd`."""

from importlib import import_module
from typing import TYPE_CHECKING

import torch

from worker_runtime.errors import HorovodInternalError
from worker_runtime.torch import elastic
from worker_runtime.torch.compression import Compression
from worker_runtime.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from worker_runtime.torch.ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    init,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    reducescatter,
    reducescatter_async,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from worker_runtime.torch.optimizer import DistributedOptimizer
from worker_runtime.torch.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from worker_runtime.api.stopping import stopping
    from worker_runtime.torch.loaders import split_data
    from worker_runtime.torch.preparation import pin_device, prepare, scale_learning_rate
else:

    def __getattr__(name: str) -> object:
        """Import what most programs do not use when it is asked for."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)


_LATE = {
    "pin_device": "worker_runtime.torch.preparation",
    "prepare": "worker_runtime.torch.preparation",
    "scale_learning_rate": "worker_runtime.torch.preparation",
    "split_data": "worker_runtime.torch.loaders",
    "stopping": "worker_runtime.api.stopping",
}

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "pin_device",
    "poll",
    "prepare",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "scale_learning_rate",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "split_data",
    "start_timeline",
    "stop_timeline",
    "stopping",
    "synchronize",
]


def _check_has_gpu() -> bool:
    """Whether there is a CUDA device; under Horovod's name, by which scripts ask for it."""
    return torch.cuda.is_available()
