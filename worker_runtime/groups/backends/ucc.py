"""UCC groups: each is tested, and runs only the collectives that are known to be right; gloo runs the others.

UCC 1.8.0 on the CPU was found right for Sum, Min, Max and Product (an Average is sent as a Sum), and for moving the
dtypes below. An allreduce of float16 silently returned its input, and allgathers of different lengths silently returned
garbage. All ranks choose the same backend for a call, since their calls are the same.

A new group is tested by an allreduce with a known result: a backend that returns its input, or garbage, raises no
error, and training with it would be silently wrong.

UCC is fast for small tensors, and slower than gloo from some megabytes on. Two threads per rank use a core each during
a collective, so ranks that share cores get slower. When a peer is lost, a survivor may get a wrong result without an
error: recovery needs a restart.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from worker_runtime.errors import InitializationError
from worker_runtime.groups.torch_groups import CONNECT_LIMIT, Interruptible, MakeGroup, TorchGroup, Work, describe_cause
from worker_runtime.groups.torch_store import OpenStore
from worker_runtime.rendezvous import Backend

# Most operations of UCC complete within this time, and sleeping would take longer; a waiting thread only yields.
_SPIN_SECONDS = 0.0002
_PAUSE_SECONDS = 0.00005
_LONGEST_PAUSE_SECONDS = 0.001


_REDUCTIONS = frozenset({dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT})
_DTYPES = frozenset({torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64})


def lets_reduce(tensor: torch.Tensor, reduction: dist.ReduceOp.RedOpType) -> bool:
    """Whether UCC runs an allreduce of such tensors."""
    return reduction in _REDUCTIONS and lets_move(tensor)


def lets_move(tensor: torch.Tensor) -> bool:
    """Whether UCC runs a broadcast of such tensors."""
    return tensor.dtype in _DTYPES and tensor.numel() > 0


def lets_gather(outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
    """Whether UCC runs an allgather of such tensors."""
    return lets_move(tensor) and all(output.shape == tensor.shape for output in outputs)


def lets_exchange(tensor: torch.Tensor) -> bool:
    """Whether UCC runs an alltoall of such tensors; the number of rows may differ between ranks."""
    return tensor.dtype in _DTYPES


class PolledWork:
    """A work that is polled until it completes, so that signals and interruptions can end a wait.

    UCC's own wait has no time limit, uses a core, and cannot be woken.

    Args:
        work: the library's work.
        interruption: when set, the work counts as failed.
        limit: the default time limit of a wait.
    """

    def __init__(self, work: Work, interruption: threading.Event, limit: timedelta) -> None:
        self._work = work
        self._interruption = interruption
        self._limit = limit

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it completes.

        Raises:
            RuntimeError: it failed, was interrupted, or did not complete in time.
        """
        limit = timeout or self._limit
        now = time.monotonic()
        spun, deadline = now + _SPIN_SECONDS, now + limit.total_seconds()
        pause = _PAUSE_SECONDS
        while not self._work.is_completed():
            now = time.monotonic()
            if now >= deadline:
                raise RuntimeError(f"it did not complete within {limit.total_seconds():g} s")
            if now < spun and not self._interruption.is_set():
                time.sleep(0)
            elif self._interruption.wait(min(pause, deadline - now)):
                raise RuntimeError("it was interrupted, since a peer was lost or the job ends")
            else:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return self._work.wait()

    def is_completed(self) -> bool:
        """Whether it has completed or failed, or was interrupted."""
        return self._interruption.is_set() or self._work.is_completed()

    @property
    def is_running(self) -> bool:
        """Whether the library may still access the tensors."""
        return not self._work.is_completed()


class CanaryError(InitializationError, RuntimeError):
    """A new group of a backend failed its test; all its members raise this error.

    Cause: The library computes wrong results, or fails, on some members.
    Remedy: Use another backend: `--backend gloo`.

    It is a RuntimeError too, since groups of process sets are created by operations, whose errors are RuntimeErrors.
    """

    def __init__(self, backend: Backend, positions: Sequence[int], size: int, fault: str) -> None:
        seen = f": {fault}" if fault else ""
        super().__init__(
            f"the backend {backend} failed its test on {len(positions)} of {size} members (the first is member "
            f"{positions[0]}){seen}; use another one, for example --backend gloo"
        )


class GatedGroup:
    """A `TorchGroup` that runs each call by UCC or by gloo.

    Args:
        inside: UCC's group.
        outside: gloo's group.
        connections: gloo's connections.
        limit: the default time limit of a wait.
    """

    def __init__(self, inside: TorchGroup, outside: TorchGroup, connections: Interruptible, limit: timedelta) -> None:
        self._inside: TorchGroup = inside
        self._outside = outside
        self._connections = connections
        self._limit = limit
        self._interruption = threading.Event()
        self._works: list[PolledWork] = []

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Reduce in place."""
        if lets_reduce(tensor, op):
            return self._watch(self._inside.allreduce(tensor, op))
        return self._outside.allreduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""
        if lets_move(tensor):
            return self._watch(self._inside.broadcast(tensor, root))
        return self._outside.broadcast(tensor, root)

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Gather tensors of one shape."""
        if lets_gather(output_tensors, input_tensor):
            return self._watch(self._inside.allgather(output_tensors, input_tensor))
        return self._outside.allgather(output_tensors, input_tensor)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
    ) -> Work:
        """Send some rows to each rank, and receive rows from each."""
        if lets_exchange(input):
            return self._watch(self._inside.alltoall_base(output, input, output_split_sizes, input_split_sizes))
        return self._outside.alltoall_base(output, input, output_split_sizes, input_split_sizes)

    def shut_down(self) -> Callable[[], bool]:
        """Make pending collectives raise, here and, for gloo's, on the peers; see `Interruptible`."""
        self._interruption.set()
        return self._connections.shut_down()

    def find_silent(self, limit_seconds: float) -> str:
        """See `Interruptible`; only gloo's connections."""
        return self._connections.find_silent(limit_seconds)

    def shutdown(self) -> None:
        """Shut both groups down. A UCC group that still runs a work is leaked, since its shutdown would wait.

        A group without `shutdown` ends with its last reference.
        """
        if any(work.is_running for work in self._works):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._inside))
        else:
            with suppress(RuntimeError):  # this group has no `shutdown`
                self._inside.shutdown()
        self._works = []
        self._inside = self._outside  # drops the last reference; no further call comes
        self._outside.shutdown()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""
        self._limit = timeout
        self._outside._set_default_timeout(timeout)  # noqa: SLF001 - torch has no public way

    def _watch(self, work: Work) -> PolledWork:
        self._works = [earlier for earlier in self._works if earlier.is_running]
        watched = PolledWork(work, self._interruption, self._limit)
        self._works.append(watched)
        return watched


_COUNT = 67  # not a power of two, and more than a vector register


def find_fault(group: TorchGroup, rank: int, size: int, limit: timedelta) -> str:
    """Test a group by a sum of known numbers; return a description of the fault, or "".

    Args:
        group: the group to test, on every member.
        rank: this worker's rank in the group.
        size: the size of the group.
        limit: how long to wait for the others.
    """
    tensor = _make_numbers(rank)
    expected = torch.stack([_make_numbers(member) for member in range(size)]).sum(0)
    try:
        group.allreduce(tensor, dist.ReduceOp.SUM).wait(limit)
    except RuntimeError as error:
        return describe_cause(error)
    if torch.equal(tensor, expected):
        return ""
    index = int((tensor != expected).nonzero()[0])
    return (
        f"an allreduce of known numbers returned {tensor[index].item():g} where their sum is {expected[index].item():g}"
    )


def _make_numbers(rank: int) -> torch.Tensor:
    """Small whole numbers; float32 represents their sums over thousands of ranks exactly."""
    return (torch.arange(_COUNT, dtype=torch.float32, device="cpu") * (rank + 3) + rank) % 31 + 1


# Creates UCC's group. Its arguments: a prefix for keys in the store, this worker's rank in the group, its size, and the
# time limit of its operations.
Connect: TypeAlias = Callable[[str, int, int, timedelta], TorchGroup]


def find_plugin(name: str) -> Any | None:
    """The plug-in that is registered with torch under this name (`creator_fn` and `extended_api`); None if none is."""
    return dist.Backend._plugins.get(name.upper())  # noqa: SLF001 - torch has no public way


@dataclass(frozen=True, slots=True)
class Ucc:
    """Creates UCC's groups.

    open_store: opens a torch store for a group.
    """

    open_store: OpenStore

    def connect(self, prefix: str, rank: int, size: int, limit: timedelta) -> TorchGroup:
        """Create a group; UCC connects its members in the first operation. See `Connect`.

        Raises:
            RuntimeError: UCC cannot create it.
        """
        store = self.open_store(prefix, rank, min(limit, CONNECT_LIMIT))
        group: TorchGroup
        if dist.is_ucc_available():
            from torch._C._distributed_c10d import ProcessGroupUCC  # noqa: PLC0415 - most builds of torch lack it

            group = ProcessGroupUCC(store, rank, size, limit)  # type: ignore[assignment]  # torch leaves it untyped
            return group
        plugin = find_plugin("ucc")
        if plugin is None:
            raise RuntimeError("torch has no UCC: its plug-in was unregistered after init(); use --backend gloo")
        if not plugin.extended_api:
            group = plugin.creator_fn(store, rank, size, limit)
            return group
        from torch._C._distributed_c10d import _DistributedBackendOptions  # noqa: PLC0415 - for rare plug-ins

        options = _DistributedBackendOptions()
        options.store = store
        options.group_rank = rank
        options.group_size = size
        options.timeout = limit
        options.group_id = prefix
        options.global_ranks_in_group = []
        group = plugin.creator_fn(options, None)
        return group


@dataclass(frozen=True, slots=True)
class Gated:
    """Creates gated groups.

    gloo: creates gloo's groups.
    connect: creates UCC's groups.
    operation_limit: the time limit of each collective.
    """

    gloo: MakeGroup
    connect: Connect
    operation_limit: timedelta

    def make(
        self, prefix: str, rank: int, size: int, device: str, limit: timedelta
    ) -> tuple[TorchGroup, Interruptible]:
        """Connect to the other members; see `torch_groups.MakeGroup`.

        Raises:
            CanaryError: UCC failed the test on some member; all members raise it.
            RuntimeError: the members could not connect within the limit.
        """
        outside, connections = self.gloo(prefix, rank, size, device, limit)
        gated, fault = None, ""
        try:
            inside = self.connect(f"{prefix}/{Backend.UCC}", rank, size, self.operation_limit)
            gated = GatedGroup(inside, outside, connections, self.operation_limit)
        except RuntimeError as error:
            fault = describe_cause(error)
        if gated is not None:
            fault = find_fault(gated, rank, size, limit)
        faulty = _list_faulty(outside, rank, size, bool(fault), limit)
        if gated is None or faulty:
            if gated is not None:
                gated.shutdown()  # not gloo's connections, from which peers may still read
            raise CanaryError(Backend.UCC, faulty, size, fault)
        return gated, gated


def _list_faulty(gloo: TorchGroup, rank: int, size: int, is_faulty: bool, limit: timedelta) -> list[int]:  # noqa: FBT001 - what it reports
    """The members that have found a fault, the same on all members."""
    faults = torch.zeros(size, dtype=torch.uint8, device="cpu")
    faults[rank] = is_faulty
    gloo.allreduce(faults, dist.ReduceOp.MAX).wait(limit)
    return [int(member) for member in faults.nonzero().flatten()]
