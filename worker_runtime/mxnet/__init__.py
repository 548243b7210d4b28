"""What an MXNet script imports: `import worker_runtime.mxnet as hvd`, or `import horovod.mxnet as hvd`."""

from importlib import import_module
from typing import TYPE_CHECKING

from worker_runtime.mxnet import installation  # noqa: F401 - first: it says what is missing

# isort: split
from worker_runtime.errors import HorovodInternalError
from worker_runtime.mxnet.compression import Compression
from worker_runtime.mxnet.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from worker_runtime.mxnet.ops import (
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
    start_timeline,
    stop_timeline,
    synchronize,
)
from worker_runtime.mxnet.optimizer import DistributedOptimizer
from worker_runtime.mxnet.trainer import DistributedTrainer

if TYPE_CHECKING:
    from worker_runtime.api.stopping import stopping
    from worker_runtime.mxnet.loaders import split_data
    from worker_runtime.mxnet.preparation import pin_device, prepare, scale_learning_rate
else:

    def __getattr__(name: str) -> object:
        """Import what most programs do not use when it is asked for."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)


_LATE = {
    "pin_device": "worker_runtime.mxnet.preparation",
    "prepare": "worker_runtime.mxnet.preparation",
    "scale_learning_rate": "worker_runtime.mxnet.preparation",
    "split_data": "worker_runtime.mxnet.loaders",
    "stopping": "worker_runtime.api.stopping",
}

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
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
    "split_data",
    "start_timeline",
    "stop_timeline",
    "stopping",
    "synchronize",
]
