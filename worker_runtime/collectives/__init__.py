"""Every collective, once, on torch tensors; the framework packages only translate arrays.

Each is an `Operation`: made with its tensors, it says what is wrong with the call on this rank alone (ValueError)
before anything is asked; what the ranks must agree on stands in its signature, and is compared elsewhere. What gloo
does wrong or not at all is made right here: tensors that are not contiguous go through a copy (gloo would overwrite
their neighbours), dtypes that it does not know travel as others or as bytes, and what is uneven is built from what it
does well. An operation can be started again in another group after a failure, unless it works in place.

The table of what may be done with which dtype stands in `dtypes`.
"""

from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.agreements import AddSet, Barrier, Commit, Join, RemoveSet
from worker_runtime.collectives.allgather import Allgather, Gathered
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.alltoall import Alltoall, Exchanged
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import AVERAGE, SUM, Combination
from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.collectives.reducescatter import Reducescatter
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.ordering.questions import Reduction

__all__ = [
    "AVERAGE",
    "SUM",
    "Adasum",
    "AddSet",
    "Allgather",
    "Allreduce",
    "Alltoall",
    "Barrier",
    "Broadcast",
    "Combination",
    "Commit",
    "Exchanged",
    "Gathered",
    "Join",
    "Reducescatter",
    "Reduction",
    "RemoveSet",
    "SparseAllreduce",
    "make_neutral",
]
