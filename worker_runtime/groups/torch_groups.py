"""The torch process groups of one generation: one for each process set, made when it is first needed.

A released operation needs a group. All members run their releases in one order, so all members make their groups at the
same place. Making groups one after the other also shows which connections belong to which: see `gloo.Connections`.

What runs in a group is a `Work`. The functions at the end wait for works, end waits, and say what a failure means.
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


class Interruptible(Protocol):
    """How a group's pending collectives are made to raise: by the connections of gloo, or what others have."""

    def shut_down(self) -> bool:
        """Make them raise, soon and for good; safe to repeat, from any thread.

        Returns:
            Whether that has succeeded: else nothing but the end of the process ends them.
        """

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for so long, of what was sent; "" for none."""


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
        """Make pending collectives raise immediately, here and in the peers, by ending the connections between them.

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
            with contextlib.suppress(RuntimeError):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch_group))
        self._groups = {}


# Waiting in slices lets Python run signal handlers; measured, it costs nothing.
_SLICE = timedelta(milliseconds=20)
_PAUSE_SECONDS = 0.001


class FailedWork:
    """What could not even be begun: it has ended, and to wait for it raises why."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, timeout: timedelta = _SLICE) -> bool:
        """Raise the error."""
        del timeout
        raise self._error

    def is_completed(self) -> bool:
        """It never ran."""
        return True


def await_works(works: Sequence[Work], listen: Callable[[], None] = lambda: None) -> RuntimeError | None:
    """Wait for all of them; the first one's failure, without its traceback.

    `listen` is called now and then meanwhile: only the sequencer may know that a rank is lost.

    The frames of a traceback would hold a work, and that its group's device, for as long as the error is kept:
    its destructor then joins a thread, which in a forked child does not exist (torch crashes there).
    """
    try:
        for work in works:
            await_work(work, listen)
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


def await_work(work: Work, listen: Callable[[], None] = lambda: None) -> None:
    """Wait for a piece of communication to its own time limit, open to signals; `listen` is called now and then.

    Raises:
        RuntimeError: it failed.
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
        work.wait()  # raises the true failure; or nothing, if it completed just after the slice
        return


def end_before(works: Sequence[Work], deadline_seconds: float) -> bool:
    """Whether all of them have ended by then (`time.monotonic()`), well or not."""
    for work in works:
        while not work.is_completed():
            if time.monotonic() > deadline_seconds:
                return False
            with contextlib.suppress(RuntimeError):  # failed or not yet: is_completed() knows
                work.wait(_SLICE)  # never less: gloo counts milliseconds, and takes 0 for no limit at all
                time.sleep(_PAUSE_SECONDS)  # for works that let a stream wait, and not this thread
    return True


def describe_cause(error: RuntimeError) -> str:
    """The message of gloo without its source position and its general advice."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", str(error))
    text = text.partition(" This is typically caused")[0].strip().rstrip(".!")
    return text or type(error).__name__


class Cancellation:
    """Of one undertaking; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._is_cancelled = False

    def cover(self, end: Callable[[], None]) -> None:
        """From now on `cancel` calls this too, now where it was called before; it may be called repeatedly."""
        with self._lock:
            self._ends.append(end)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            end()

    def cancel(self) -> None:
        """Make every wait fail soon."""
        with self._lock:
            self._is_cancelled = True
            ends = list(self._ends)
        for end in ends:
            end()
