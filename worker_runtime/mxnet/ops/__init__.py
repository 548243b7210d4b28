"""The collectives of the API, and what Horovod keeps in the same module; one file for each kind.

`__all__` holds what is public; the rest is what programs that look inside Horovod find beside it.
"""

from worker_runtime.api import async_handles, barriers
from worker_runtime.api.basics import HorovodBasics
from worker_runtime.api.job import is_homogeneous as is_homogeneous
from worker_runtime.api.names import *  # noqa: F403 - the list of names
from worker_runtime.api.reductions import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
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
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
