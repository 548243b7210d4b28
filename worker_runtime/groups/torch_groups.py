"""The torch process groups of one generation: one for each process set, made when it is first needed.

Whoever needs one is a released operation, and all members run their releases in one order, so all of them come here at
the same place. Making groups one after the other also tells which connections belong to which: see `Connections`.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist

from worker_runtime.groups.connections import Interruptible

ALL_RANKS = -1  # the version of the set of all ranks
CONNECT_LIMIT = timedelta(minutes=1)  # the members of a process set come here one right after the other


class Work(Protocol):
    """One piece of communication under way (torch's Work)."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Wait for its end; raises RuntimeError when it failed or did not end within `timeout`."""

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""


class TorchGroup(Protocol):
    """What is used of torch's ProcessGroupGloo, whose methods torch leaves untyped."""

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Combine in place."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Collect tensors of one shape."""

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
    ) -> Work:
        """Give each rank some rows, and get some from each."""

    def shutdown(self) -> None:
        """Stop its threads."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""


# Makes a group. Its arguments: a prefix for the store's keys, this worker's rank in the group, the group's size, the
# kind of device whose tensors it moves ("cpu" or "cuda"), and how long to wait for the others.
MakeGroup: TypeAlias = Callable[[str, int, int, str, timedelta], tuple[TorchGroup, Interruptible]]


class TorchGroups:
    """Makes, keeps and ends them.

    Args:
        rank: of this worker in the job.
        make: makes one with the other members; raises RuntimeError where they cannot connect.
    """

    def __init__(self, rank: int, make: MakeGroup) -> None:
        self._rank = rank
        self._make = make
        self._lock = threading.Lock()
        self._groups: dict[tuple[int, str], tuple[TorchGroup, Interruptible]] = {}
        self._is_closed = False

    def find(
        self, version: int, ranks: tuple[int, ...], device: str = "cpu", limit: timedelta = CONNECT_LIMIT
    ) -> TorchGroup:
        """The group of a process set, for tensors on a kind of device; connects to the members the first time.

        Args:
            version: of the set; see `ProcessSets.version`.
            ranks: of its members in the job.
            device: "cpu" or "cuda".
            limit: how long to wait for the other members.

        Raises:
            RuntimeError: the members could not connect, or the groups are closed.
        """
        with self._lock:
            found = self._groups.get((version, device))
            if found is None:
                if self._is_closed:
                    raise RuntimeError("the group is closed")
                prefix = f"set/{version}/{device}"
                found = self._make(prefix, ranks.index(self._rank), len(ranks), device, limit)
                self._groups[version, device] = found
        return found[0]

    def end(self, version: int) -> None:
        """The process set is gone; nothing runs in it any more."""
        with self._lock:
            ended = [self._groups.pop(key) for key in list(self._groups) if key[0] == version]
        for torch_group, _ in ended:
            torch_group.shutdown()

    def interrupt(self) -> bool:
        """Make pending collectives raise at once, here and in the peers, by ending the connections between them.

        Returns:
            Whether that has succeeded; see `Interruptible`.
        """
        return all([connections.shut_down() for _, connections in list(self._groups.values())])  # noqa: C419 - of each

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for so long; "" for none."""
        found = (connections.find_silent(limit_seconds) for _, connections in list(self._groups.values()))
        return next(filter(None, found), "")

    def close(self) -> None:
        """End connections, threads and descriptors. No collective may be pending."""
        with self._lock:
            self._is_closed = True
            groups, self._groups = self._groups, {}
        for torch_group, _ in groups.values():
            torch_group.shutdown()

    def abandon(self) -> None:
        """Never destroy the groups: a destructor would wait for threads that do not end, or are a parent's.

        That is a leak on purpose, in a process that is about to end or to be replaced.
        """
        self._is_closed = True
        for torch_group, _ in self._groups.values():
            with suppress(RuntimeError):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch_group))
        self._groups = {}
