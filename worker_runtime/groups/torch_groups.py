"""The torch process groups of one generation: one for each process set, created when it is first needed.

A released operation needs a group. All members run their releases in one order, so all create their groups at the same
place. Creating one group at a time also shows which connections belong to it: see `gloo.Connections`.

A communication in a group is a `Work`. The functions at the end wait for works, and describe their errors.
"""

import contextlib
import ctypes
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist

ALL_RANKS = -1  # the version of the set of all ranks
CONNECT_LIMIT = timedelta(minutes=1)  # the members of a process set connect at nearly the same time


class Work(Protocol):
    """A running communication (torch's Work)."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Wait until it completes; raises RuntimeError if it fails, or does not complete within `timeout`."""

    def is_completed(self) -> bool:
        """Whether it has completed or failed."""


class TorchGroup(Protocol):
    """The used methods of torch's ProcessGroupGloo, which torch leaves untyped."""

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Reduce in place."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Gather tensors of one shape."""

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
    ) -> Work:
        """Send some rows to each rank, and receive rows from each."""

    def shutdown(self) -> None:
        """Stop its threads."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""


class Interruptible(Protocol):
    """Aborts the pending collectives of a group: the connections of gloo, or the abort of another backend."""

    def shut_down(self) -> Callable[[], bool]:
        """Make pending and later collectives raise, without waiting. May be repeated, from any thread.

        Returns:
            Waits for the end, within a time limit, and returns whether that succeeded; otherwise only the end of the
            process ends them.
        """

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has not acknowledged sent data for this long; "" for none."""


# Creates a group. Its arguments: a prefix for the store's keys, this worker's rank in the group, the group's size, the
# device type of its tensors ("cpu" or "cuda"), and the time limit.
MakeGroup: TypeAlias = Callable[[str, int, int, str, timedelta], tuple[TorchGroup, Interruptible]]


class TorchGroups:
    """Creates, keeps and closes the groups.

    Args:
        rank: this worker's rank in the job.
        make: creates a group with the other members; raises RuntimeError if they cannot connect.
    """

    def __init__(self, rank: int, make: MakeGroup) -> None:
        self._rank = rank
        self._make = make
        self._lock = threading.Lock()
        self._groups: dict[tuple[int, str], tuple[TorchGroup, Interruptible]] = {}
        self._is_closed = self._is_interrupted = False

    def find(
        self, version: int, ranks: tuple[int, ...], device: str = "cpu", limit: timedelta = CONNECT_LIMIT
    ) -> TorchGroup:
        """The group of a process set for tensors of a device type; connects to the members the first time.

        Args:
            version: the set's version; see `ProcessSets.find_version`.
            ranks: its members' ranks in the job.
            device: "cpu" or "cuda".
            limit: how long to wait for the other members.

        Raises:
            RuntimeError: the members could not connect, or the groups are closed or were interrupted.
        """
        with self._lock:
            found = self._groups.get((version, device))
            if found is None:
                if self._has_ended():
                    raise RuntimeError("the group is closed")
                prefix = f"set/{version}/{device}"
                found = self._make(prefix, ranks.index(self._rank), len(ranks), device, limit)
                self._groups[version, device] = found
                if self._has_ended():  # meanwhile: else its first operation would wait for peers that never come
                    found[1].shut_down()
                    raise RuntimeError("the group was interrupted while it was made")
        return found[0]

    def end(self, version: int) -> None:
        """Close the groups of a removed process set, in which nothing runs."""
        with self._lock:
            ended = [self._groups.pop(key) for key in list(self._groups) if key[0] == version]
        for torch_group, _ in ended:
            torch_group.shutdown()

    def interrupt(self) -> bool:
        """Abort pending collectives, here and on the peers, by shutting down the connections. No other group is made.

        Returns:
            Whether that succeeded; see `Interruptible`.
        """
        self._is_interrupted = True
        # The abort of one group may wait for kernels of another: all begin before the first wait.
        waits = [connections.shut_down() for _, connections in list(self._groups.values())]
        return all([await_end() for await_end in waits])  # noqa: C419 - each has to be awaited

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for this long; "" for none."""
        found = (connections.find_silent(limit_seconds) for _, connections in list(self._groups.values()))
        return next(filter(None, found), "")

    def close(self) -> None:
        """Close connections, threads and descriptors. No collective may be pending."""
        with self._lock:
            self._is_closed = True
            groups, self._groups = self._groups, {}
        for torch_group, _ in groups.values():
            torch_group.shutdown()

    def abandon(self) -> None:
        """Leak the groups: a destructor would wait for threads that never end, or belong to the parent process.

        This process is about to end or to be replaced.
        """
        self._is_closed = True
        for torch_group, _ in self._groups.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch_group))
        self._groups = {}

    def _has_ended(self) -> bool:
        return self._is_closed or self._is_interrupted


# Waiting in slices lets Python run signal handlers; by measurement it costs nothing.
_SLICE = timedelta(milliseconds=20)
_PAUSE_SECONDS = 0.001


class FailedWork:
    """A work that could not start: it is completed, and a wait raises the error.

    Args:
        error: why it could not start.
    """

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, timeout: timedelta = _SLICE) -> bool:
        """Raise the error."""
        del timeout
        raise self._error

    def is_completed(self) -> bool:
        """Return True."""
        return True


def await_works(works: Sequence[Work], listen: Callable[[], None] = lambda: None) -> RuntimeError | None:
    """Wait for all works; return the first error, without its traceback.

    `listen` is called repeatedly meanwhile: the sequencer may know that a rank is lost.

    The traceback's frames would keep a work, and with it the group's device, alive as long as the error. The device's
    destructor joins a thread, which does not exist in a forked child (torch crashes there).
    """
    try:
        for work in works:
            await_work(work, listen)
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


def await_work(work: Work, listen: Callable[[], None] = lambda: None) -> None:
    """Wait for a work up to its own time limit; signals can interrupt, and `listen` is called repeatedly.

    Raises:
        RuntimeError: the work failed.
    """
    while True:
        try:
            work.wait(_SLICE)
        except RuntimeError:
            if not work.is_completed():
                listen()
                continue  # the slice is over, not the operation
        else:
            return
        work.wait()  # raises the work's own error, or nothing if it completed just after the slice
        return


def end_before(works: Sequence[Work], deadline: float) -> bool:
    """Wait for the end of all works, up to a deadline of `time.monotonic()`; return whether all have ended."""
    for work in works:
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(RuntimeError):  # failed or not completed: is_completed() tells
                work.wait(_SLICE)  # not less: gloo counts milliseconds, and treats 0 as no limit
                time.sleep(_PAUSE_SECONDS)  # for works whose wait blocks a stream, and not this thread
    return True


def describe_cause(error: RuntimeError) -> str:
    """The message of gloo without its source position and general advice."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", str(error))
    text = text.partition(" This is typically caused")[0].strip().rstrip(".!")
    return text or type(error).__name__
