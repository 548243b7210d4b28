"""The collectives of the API, and what Horovod keeps in the same module; one file for each kind.

`__all__` holds what is public; the rest is what programs that look inside Horovod find beside it.
"""

from worker_runtime.api.async_handles import HandleMap, poll, synchronize
from worker_runtime.api.barriers import barrier, join
from worker_runtime.api.basics import HorovodBasics
from worker_runtime.api.job import is_homogeneous as is_homogeneous
from worker_runtime.api.names import *  # noqa: F403 - the list of names
from worker_runtime.api.reductions import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodAllgather as HorovodAllgather,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodAllreduce as HorovodAllreduce,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodAlltoall as HorovodAlltoall,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodBroadcast as HorovodBroadcast,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodGroupedAllgather as HorovodGroupedAllgather,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodGroupedAllreduce as HorovodGroupedAllreduce,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodGroupedReducescatter as HorovodGroupedReducescatter,
)
from worker_runtime.torch.autograd.horovod import (
    HorovodReducescatter as HorovodReducescatter,
)
from worker_runtime.torch.ops.allreduces import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from worker_runtime.torch.ops.alltoalls import alltoall, alltoall_async
from worker_runtime.torch.ops.broadcasts import broadcast, broadcast_, broadcast_async, broadcast_async_
from worker_runtime.torch.ops.gathers import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from worker_runtime.torch.ops.reducescatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from worker_runtime.torch.ops.sparse_allreduces import sparse_allreduce_async

_basics = HorovodBasics()
_handle_map = HandleMap()

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
    "sparse_allreduce_async",
    "synchronize",
]
