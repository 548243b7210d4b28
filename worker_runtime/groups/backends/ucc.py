"""Makes groups of UCC, which is not trusted with everything: beside gloo's, tested, and behind a gate.

The gate lets through what was found right with UCC 1.8.0 on the CPU: Sum, Min, Max and Product (an Average travels as a
Sum) and the moving of the dtypes below. gloo does the rest. An allreduce of float16 silently returned its input, and
allgathers of several lengths silently returned garbage. The answers are alike on all ranks, since they call alike.

A new group is tested by an allreduce whose result is known: a backend that returns its input, or garbage, raises
nothing, and training with it would be silently wrong.

UCC is fast for small tensors, and slower than gloo from some megabytes on. Two threads per rank use a core each while a
collective runs, so ranks that share cores get slower with it. When a peer dies a survivor may get a wrong result
without an error: recovery is by restart.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist

from worker_runtime.errors import InitializationError
from worker_runtime.groups.torch_groups import Interruptible, MakeGroup, TorchGroup, Work, describe_cause
from worker_runtime.rendezvous import Backend

# Most operations of UCC end within this time, and sleeping would take longer; a waiting thread yields meanwhile.
_SPIN_SECONDS = 0.0002
_PAUSE_SECONDS = 0.00005
_LONGEST_PAUSE_SECONDS = 0.001


_REDUCTIONS = frozenset({dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT})
_DTYPES = frozenset({torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64})


def lets_reduce(tensor: torch.Tensor, reduction: dist.ReduceOp.RedOpType) -> bool:
    """Whether an allreduce of such tensors goes through."""
    return reduction in _REDUCTIONS and lets_move(tensor)


def lets_move(tensor: torch.Tensor) -> bool:
    """Whether a broadcast of such tensors goes through."""
    return tensor.dtype in _DTYPES and tensor.numel() > 0


def lets_gather(outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
    """Whether an allgather of such tensors goes through."""
    return lets_move(tensor) and all(output.shape == tensor.shape for output in outputs)


def lets_exchange(tensor: torch.Tensor) -> bool:
    """Whether an alltoall of such tensors goes through; the number of rows may differ between ranks."""
    return tensor.dtype in _DTYPES


class PolledWork:
    """A piece of communication that is looked at until it has ended, so that signals and interruptions get through.

    UCC's own wait takes no time limit and uses a core; there is nothing to be woken by.

    Args:
        work: the library's.
        interruption: when set, the work counts as failed, whatever becomes of it.
        limit: how long a wait without a limit may take.
    """

    def __init__(self, work: Work, interruption: threading.Event, limit: timedelta) -> None:
        self._work = work
        self._interruption = interruption
        self._limit = limit

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for its end.

        Raises:
            RuntimeError: it failed, was interrupted, or did not end in time.
        """
        limit = timeout or self._limit
        now = time.monotonic()
        spun, deadline = now + _SPIN_SECONDS, now + limit.total_seconds()
        pause = _PAUSE_SECONDS
        while not self._work.is_completed():
            now = time.monotonic()
            if now >= deadline:
                raise RuntimeError(f"it did not end within {limit.total_seconds():g} s")
            if now < spun and not self._interruption.is_set():
                time.sleep(0)
            elif self._interruption.wait(min(pause, deadline - now)):
                raise RuntimeError("it was interrupted, since a peer was lost or the job ends")
            else:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return self._work.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not, or is not waited for any more."""
        return self._interruption.is_set() or self._work.is_completed()

    @property
    def is_running(self) -> bool:
        """The library still has its hands on the tensors."""
        return not self._work.is_completed()


class CanaryError(InitializationError, RuntimeError):
    """A new group of a backend failed a test whose result is known; all its members raise this alike.

    Cause: The library computes wrong results, or fails, on some members.
    Remedy: Use another backend: `--backend gloo`.

    It is a RuntimeError too since groups of process sets are made late, where errors of communication are expected.
    """

    def __init__(self, backend: Backend, positions: Sequence[int], size: int, fault: str) -> None:
        seen = f": {fault}" if fault else ""
        super().__init__(
            f"the backend {backend} failed its test on {len(positions)} of {size} members (the first is member "
            f"{positions[0]}){seen}; use another one, as with --backend gloo"
        )


class GatedGroup:
    """A `TorchGroup` that sends each call through the gate, or around it.

    Args:
        inside: UCC's group.
        outside: gloo's.
        connections: gloo's.
        limit: how long a wait without a limit may take.
    """

    def __init__(self, inside: TorchGroup, outside: TorchGroup, connections: Interruptible, limit: timedelta) -> None:
        self._inside: TorchGroup = inside
        self._outside = outside
        self._connections = connections
        self._limit = limit
        self._interruption = threading.Event()
        self._works: list[PolledWork] = []

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Combine in place."""
        if lets_reduce(tensor, op):
            return self._watch(self._inside.allreduce(tensor, op))
        return self._outside.allreduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""
        if lets_move(tensor):
            return self._watch(self._inside.broadcast(tensor, root))
        return self._outside.broadcast(tensor, root)

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Collect tensors of one shape."""
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
        """Give each rank some rows, and get some from each."""
        if lets_exchange(input):
            return self._watch(self._inside.alltoall_base(output, input, output_split_sizes, input_split_sizes))
        return self._outside.alltoall_base(output, input, output_split_sizes, input_split_sizes)

    def shut_down(self) -> bool:
        """Make pending collectives raise, here and, as far as gloo does them, in the peers; see `Interruptible`."""
        self._interruption.set()
        return self._connections.shut_down()

    def find_silent(self, limit_seconds: float) -> str:
        """As far as gloo is concerned; see `Interruptible`."""
        return self._connections.find_silent(limit_seconds)

    def shutdown(self) -> None:
        """Stop the threads of both; a backend that is still at work is left alone for ever, since it would be awaited.

        A backend without a shutdown ends with its last reference.
        """
        if any(work.is_running for work in self._works):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._inside))
        else:
            with suppress(RuntimeError):
                self._inside.shutdown()
        self._works = []
        self._inside = self._outside  # nothing comes any more
        self._outside.shutdown()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""
        self._limit = timeout
        self._outside._set_default_timeout(timeout)  # noqa: SLF001 - torch's only way to change it

    def _watch(self, work: Work) -> PolledWork:
        self._works = [earlier for earlier in self._works if earlier.is_running]
        watched = PolledWork(work, self._interruption, self._limit)
        self._works.append(watched)
        return watched


_COUNT = 67  # no power of two, and more than one vector register


def find_fault(group: TorchGroup, rank: int, size: int, limit: timedelta) -> str:
    """Add up known numbers with all members; what is wrong with the result, or "" when nothing is.

    Args:
        group: takes part in it on every member.
        rank: of this worker in the group.
        size: of the group.
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
    """Small whole numbers, of which single precision holds any sum of thousands of ranks exactly."""
    return (torch.arange(_COUNT, dtype=torch.float32, device="cpu") * (rank + 3) + rank) % 31 + 1


# Makes UCC's group. Its arguments: a prefix for keys in the store, this worker's rank in the group, its size, and the
# time limit of its operations.
Connect: TypeAlias = Callable[[str, int, int, timedelta], TorchGroup]


@dataclass(frozen=True, slots=True)
class Gated:
    """How such groups are made.

    gloo: makes gloo's groups.
    connect: makes UCC's.
    operation_limit: the time limit of each collective, once a group is formed.
    """

    gloo: MakeGroup
    connect: Connect
    operation_limit: timedelta

    def make(
        self, prefix: str, rank: int, size: int, device: str, limit: timedelta
    ) -> tuple[TorchGroup, Interruptible]:
        """Connect to the other members; see `torch_groups.MakeGroup`.

        Raises:
            CanaryError: UCC cannot be used; all members raise it, also those that saw no fault.
            RuntimeError: they could not connect within the limit.
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
                gated.shutdown()  # not the connections: peers may still be reading from them
            raise CanaryError(Backend.UCC, faulty, size, fault)
        return gated, gated


def _list_faulty(gloo: TorchGroup, rank: int, size: int, is_faulty: bool, limit: timedelta) -> list[int]:  # noqa: FBT001 - what it reports
    """Which members saw a fault; all members learn the same."""
    faults = torch.zeros(size, dtype=torch.uint8, device="cpu")
    faults[rank] = is_faulty
    gloo.allreduce(faults, dist.ReduceOp.MAX).wait(limit)
    return [int(member) for member in faults.nonzero().flatten()]
