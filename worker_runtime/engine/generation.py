"""The state of one generation on this rank: its process sets, its torch groups, its connection to the sequencer.

In an elastic job the engine moves from one generation to the next, and takes pending operations with it. This module
has the state that stays behind.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.coordination.driver import Driver
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import ReceivedResponse
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.pending import OF_THE_JOB
from worker_runtime.coordination.ordering.requests import Kind, Release
from worker_runtime.coordination.wire import Farewell, Frame
from worker_runtime.engine.process_sets import ProcessSets
from worker_runtime.groups.torch_groups import TorchGroups, Work, await_works, end_before

# An interrupted operation raises within milliseconds; occasionally gloo never completes one.
INTERRUPT_LIMIT_SECONDS = 0.2


class Generation:
    """A generation. Any thread may use it; only the driving thread calls `start` and `take_part`, in release order.

    Its members are connected by `connect`.

    Args:
        number: the number of the generation; 0 in a world of one.
        rank: this worker's rank.
        size: the size of the generation.

    sets: the process sets.
    driver: the conversation with the sequencer; None in a world of one, or before `connect`.
    seen: the high watermark: the highest index of a received release; -1 for none.
    failure: the reason why the generation has failed; None while it works.
    failed_at: the time of the failure (`time.monotonic()`).
    stops_from: the index of the first release after a stop notice for the job; infinite without a notice.
    is_over: later releases are ignored.
    is_unsure: a work was interrupted while it started, so that its state is unknown.
    """

    def __init__(self, number: int = 0, rank: int = 0, size: int = 1) -> None:
        self.number = number
        self.rank = rank
        self.size = size
        self.sets = ProcessSets(rank, size, number)
        self.driver: Driver | None = None
        self.seen = -1
        self.failure: str | None = None
        self.failed_at = 0.0
        self.stops_from = math.inf
        self.is_over = False
        self.is_unsure = False
        self._groups: TorchGroups | None = None
        self._has_left = False
        self._neutral: list[tuple[Operation[object], Sequence[Work]]] = []  # kernels may still read their tensors
        self._loose: list[Sequence[Work]] = []  # works of failed operations

    def connect(
        self,
        group: Group,
        link: Link,
        carry_out: Callable[[ReceivedResponse], None],
        askers: Collection[int],
        silence_seconds: float,
    ) -> None:
        """Take the group and the connection of the generation, so that operations can run.

        Args:
            group: the group, which the generation then owns.
            link: the connection to the sequencer, which it owns too.
            carry_out: processes a response of the sequencer.
            askers: the identifiers of the program's threads that have submitted operations.
            silence_seconds: how long the sequencer's host may acknowledge nothing.
        """
        self._groups = group.torch_groups
        link.limit_silence(silence_seconds)
        self.driver = Driver(link, self.sets.list_ranks, carry_out, askers)

    def start(self, operation: Operation[object], release: Release) -> Sequence[Work] | RuntimeError:
        """Start an operation's communication; return its works, or the error without its traceback's frames."""
        groups = self._groups
        request = release.request
        try:
            self.change_sets(release)
            if groups is None or request.signature.kind in OF_THE_JOB:
                return ()
            version = self.sets.find_version(request.process_set)
            return operation.start(groups.find(version, release.members, request.signature.device), release)
        except RuntimeError as error:
            self.is_unsure = True
            return error.with_traceback(None)
        except BaseException:  # from a signal's handler
            self.is_unsure = True
            raise

    def take_part(self, release: Release, device: torch.device | None = None) -> RuntimeError | None:
        """Start an operation that this rank, after `join()`, has not submitted; return the error, if any.

        Args:
            release: the release.
            device: the device for operations on CUDA: the driving thread may have another current device.
        """
        if release.request.signature.payload_dtype:
            return None  # the sequencer has combined the payloads: no rank communicates

        self._neutral = [
            (operation, works) for operation, works in self._neutral if not all(work.is_completed() for work in works)
        ]
        if release.request.signature.device == "cpu":
            device = None
        neutral = make_neutral(release, self.rank, device)

        try:
            works = self.start(neutral, release)
            if isinstance(works, RuntimeError):
                return works
            self._neutral.append((neutral, works))
        except BaseException:  # from a signal's handler, before the works were stored
            self.is_unsure = True
            raise
        return None

    def change_sets(self, release: Release) -> None:
        """Add or remove a process set, at the same place in the order on every rank."""
        match release.request.signature.kind:
            case Kind.ADD_SET:
                self.sets.add(release.value, release.sizes[0], release.index)
            case Kind.REMOVE_SET:
                (number,) = release.sizes[0]
                if self._groups is not None:
                    self._groups.end(self.sets.find_version(number))
                self.sets.remove(number)

    def note_failure(self, reason: str) -> None:
        """Store the reason of the failure; the first one is the cause of all others."""
        if self.failure is None:
            self.failed_at = time.monotonic()
            self.failure = reason

    def keep(self, works: Sequence[Work]) -> None:
        """Keep the works of a failed operation until `close`: some of them may still be running."""
        self._loose.append(works)

    def interrupt(self) -> bool:
        """Abort the running works, here and on the peers; return whether that succeeded: see `Interruptible`."""
        groups = self._groups
        return groups is None or groups.interrupt()

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for this long; "" for none."""
        groups = self._groups
        if groups is not None:
            return groups.find_silent(limit_seconds)
        return ""

    def leave(self, find_farewell: Callable[[], Farewell] = Farewell, kind: Frame = Frame.LEAVE) -> None:
        """Send the farewell to the sequencer, once; see `Driver.leave`."""
        if self.driver is not None and not self._has_left:
            self._has_left = True
            self.driver.leave(find_farewell, kind)

    def close(self, running: Iterable[Sequence[Work]] = ()) -> bool:
        """Leave, and close the groups; return False if a work does not complete and the groups were abandoned.

        Args:
            running: works that were started and not awaited.
        """
        self.leave()
        groups, self._groups = self._groups, None
        if groups is None:
            return True
        deadline = time.monotonic() + INTERRUPT_LIMIT_SECONDS
        begun = (*running, *(works for _, works in self._neutral), *self._loose)
        if self.is_unsure or not all([end_before(works, deadline) for works in begun]):  # noqa: C419 - all are waited for
            groups.abandon()  # destroying them would wait for works that gloo never completes
            return False
        for _, works in self._neutral:
            await_works(works)  # their errors concern no operation of this rank
        self._neutral.clear()
        self._loose.clear()
        groups.close()
        return True

    def abandon(self) -> None:
        """Abandon the groups in a forked child: threads and connections belong to the parent."""
        if self.driver is not None:
            self.driver.abandon()
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.abandon()
