"""What a PyTorch script imports: `import worker_runtime.torch as hvd`, or `import horovod.torch as hvd`."""

from worker_runtime.errors import HorovodInternalError
from worker_runtime.runtime import RUNTIME
from worker_runtime.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from worker_runtime.torch.ops import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    allreduce_,
    barrier,
    broadcast,
    broadcast_,
)
from worker_runtime.torch.optimizer import DistributedOptimizer

__all__ = [
    "Average",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def init() -> None:
    """Join the job that hvdrun started, or be a world of one; does nothing when initialised.

    Raises:
        ValueError: the job cannot be joined, or another launcher started this process.
    """
    RUNTIME.init()


def shutdown() -> None:
    """Leave the job; operations that are pending on any rank fail. Does nothing when not initialised."""
    RUNTIME.shutdown()


def is_initialized() -> bool:
    """Whether `init()` has succeeded and `shutdown()` has not been called since."""
    return RUNTIME.is_initialized


def rank() -> int:
    """This worker's number, 0 to size() - 1; raises ValueError when not initialised, as do the next five."""
    return RUNTIME.assignment.rank


def size() -> int:
    """The number of workers."""
    return RUNTIME.assignment.size


def local_rank() -> int:
    """This worker's number among those on the same host."""
    return RUNTIME.assignment.local_rank


def local_size() -> int:
    """The number of workers on this host."""
    return RUNTIME.assignment.local_size


def cross_rank() -> int:
    """This host's number among the hosts that have a worker with this local rank."""
    return RUNTIME.assignment.cross_rank


def cross_size() -> int:
    """The number of hosts that have a worker with this local rank."""
    return RUNTIME.assignment.cross_size
