"""One generation as this rank goes through it: its process sets, its torch groups, its connection to the sequencer.

In a job that outlives its workers the engine goes from one generation to the next, and so does what is pending. What
belongs to one generation alone stands here.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.coordination.driver import Driver
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import Answer
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Kind, Release
from worker_runtime.coordination.wire import Farewell, Frame
from worker_runtime.engine.process_sets import ProcessSets
from worker_runtime.groups.torch_groups import TorchGroups, Work, await_works, end_before

# An interrupted operation raises within milliseconds; now and then gloo forgets one, and then waiting on is useless.
INTERRUPT_LIMIT_SECONDS = 0.2
_OF_THE_JOB = frozenset({Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET})


class Generation:
    """For any thread; `start` and `take_part` are called by the one that drives, one release after the other.

    Its members may not be connected yet: see `connect`.

    Args:
        number: 0 in a world of one.
        rank: of this worker.
        size: of the generation.

    number, rank, size: these.
    sets: the process sets.
    driver: None where there is nobody to talk to, or not yet.
    seen: the highest index of a release that was heard of; -1 for none.
    failure: why nothing is answered any more; None while something is.
    failed_at: when that was noticed (`time.monotonic()`).
    stops_from: the index of the first release that comes after a stop notice for the job; infinite while there is none.
    is_over: what is still released is not run any more.
    is_unsure: something was begun of which nothing is known.
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
        self._neutral: list[Sequence[Work]] = []
        self._loose: list[Sequence[Work]] = []  # of operations that have failed

    def connect(
        self,
        group: Group,
        link: Link,
        carry_out: Callable[[Answer], None],
        askers: Collection[int],
        silence_seconds: float,
    ) -> None:
        """The members are connected: from now on operations can run. In a world of one they always can.

        Args:
            group: of the generation, which this owns from now on.
            link: to its sequencer; the same.
            carry_out: what the sequencer answers.
            askers: see `Driver`.
            silence_seconds: how long the sequencer's host may acknowledge nothing.
        """
        self._groups = group.torch_groups
        link.limit_silence(silence_seconds)
        self.driver = Driver(link, self.sets.list_ranks, carry_out, askers)

    def start(self, operation: Operation[object], terms: Release) -> Sequence[Work] | RuntimeError:
        """Begin to communicate; the error when that cannot be begun, without the frames that hold the group."""
        groups = self._groups
        question = terms.question
        try:
            self.change_sets(terms)
            if groups is None or question.signature.kind in _OF_THE_JOB:
                return ()
            version = self.sets.version(question.process_set)
            return operation.start(groups.find(version, terms.members, question.signature.device), terms)
        except RuntimeError as error:
            self.is_unsure = True
            return error.with_traceback(None)
        except BaseException:  # an exception of a signal's handler
            self.is_unsure = True
            raise

    def take_part(self, terms: Release, device: torch.device | None = None) -> RuntimeError | None:
        """Start an operation for which this rank, having joined, did not ask; what was wrong.

        Args:
            terms: of the release.
            device: for operations on CUDA: the thread that drives may have another current one than the program.
        """
        if terms.question.signature.payload_dtype:
            return None  # nobody communicates: the others would not come to connect a group
        self._neutral = [works for works in self._neutral if not all(work.is_completed() for work in works)]
        neutral = make_neutral(terms, self.rank, device if terms.question.signature.device != "cpu" else None)
        try:
            works = self.start(neutral, terms)
            if isinstance(works, RuntimeError):
                return works
            self._neutral.append(works)
        except BaseException:  # of a signal's handler, before anybody had what was begun
            self.is_unsure = True
            raise
        return None

    def change_sets(self, terms: Release) -> None:
        """Every rank makes and removes process sets at the same place in the order."""
        match terms.question.signature.kind:
            case Kind.ADD_SET:
                self.sets.add(terms.value, terms.sizes[0], terms.index)
            case Kind.REMOVE_SET:
                (number,) = terms.sizes[0]
                if self._groups is not None:
                    self._groups.end(self.sets.version(number))
                self.sets.remove(number)

    def note_failure(self, reason: str) -> None:
        """Nothing will be answered any more. The first reason is the cause of all that follow."""
        if self.failure is None:
            self.failed_at = time.monotonic()
            self.failure = reason

    def keep(self, works: Sequence[Work]) -> None:
        """Nobody waits for these any more, since one of them has failed; the others may be under way still."""
        self._loose.append(works)

    def interrupt(self) -> bool:
        """Make what runs raise immediately, here and in the peers; whether that has succeeded: see `Interruptible`."""
        groups = self._groups
        return groups is None or groups.interrupt()

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for so long; "" for none."""
        groups = self._groups
        return "" if groups is None else groups.find_silent(limit_seconds)

    def leave(self, find_farewell: Callable[[], Farewell] = Farewell, kind: Frame = Frame.LEAVE) -> None:
        """Say goodbye to the sequencer, unless that was done; see `Driver.leave`."""
        if self.driver is not None and not self._has_left:
            self._has_left = True
            self.driver.leave(find_farewell, kind)

    def close(self, running: Iterable[Sequence[Work]] = ()) -> bool:
        """Leave, and end the groups; False where something that runs does not end, and they had to be abandoned.

        Args:
            running: what was started and has not been waited for.
        """
        self.leave()
        groups, self._groups = self._groups, None
        if groups is None:
            return True
        deadline_seconds = time.monotonic() + INTERRUPT_LIMIT_SECONDS
        begun = (*running, *self._neutral, *self._loose)
        if self.is_unsure or not _end_all(begun, deadline_seconds):
            groups.abandon()  # to destroy them would be to wait for what gloo has forgotten
            return False
        for works in self._neutral:
            await_works(works)  # their failures are nobody's
        self._neutral.clear()
        self._loose.clear()
        groups.close()
        return True

    def abandon(self) -> None:
        """In a forked child: threads and connections belong to the parent."""
        if self.driver is not None:
            self.driver.abandon()
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.abandon()


def _end_all(begun: Iterable[Sequence[Work]], deadline_seconds: float) -> bool:
    """Give each its chance, also after one has not ended."""
    return all([end_before(works, deadline_seconds) for works in begun])  # noqa: C419 - see above
