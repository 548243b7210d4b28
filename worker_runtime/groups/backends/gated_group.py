"""Two groups of the same members that look like one: UCC for what it is trusted with, and gloo for the rest."""

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from worker_runtime.groups.backends import gate
from worker_runtime.groups.backends.polled_work import PolledWork
from worker_runtime.groups.connections import Interruptible
from worker_runtime.groups.torch_groups import TorchGroup, Work


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
        if gate.lets_reduce(tensor, op):
            return self._watch(self._inside.allreduce(tensor, op))
        return self._outside.allreduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""
        if gate.lets_move(tensor):
            return self._watch(self._inside.broadcast(tensor, root))
        return self._outside.broadcast(tensor, root)

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Collect tensors of one shape."""
        if gate.lets_gather(output_tensors, input_tensor):
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
        if gate.lets_exchange(input):
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
