"""The collectives of the API, and what Horovod keeps in the same module; one file for each kind."""

from worker_runtime.api import async_handles, barriers
from worker_runtime.api.basics import HorovodBasics
from worker_runtime.api.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from worker_runtime.api.job import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from worker_runtime.api.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from worker_runtime.api.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    handle_average_backwards_compatibility,
)
from worker_runtime.api.timeline import start_timeline, stop_timeline
from worker_runtime.mxnet.boundary import raises_mxnet_errors
from worker_runtime.mxnet.ops.allreduces import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from worker_runtime.mxnet.ops.alltoalls import alltoall, alltoall_async
from worker_runtime.mxnet.ops.broadcasts import broadcast, broadcast_, broadcast_async, broadcast_async_
from worker_runtime.mxnet.ops.gathers import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from worker_runtime.mxnet.ops.reducescatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

_basics = HorovodBasics()
poll = raises_mxnet_errors(async_handles.poll)
synchronize = raises_mxnet_errors(async_handles.synchronize)
barrier = raises_mxnet_errors(barriers.barrier)
join = raises_mxnet_errors(barriers.join)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_basics",
    "add_process_set",
    "allgather",
    "allgather_async",
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
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
