"""Runs released operations on the torch groups of a generation, and changes its process sets, in the one order."""

import time
from collections.abc import Iterable, Sequence

import torch

from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Kind, Release
from worker_runtime.engine.process_sets import ProcessSets
from worker_runtime.groups.torch_groups import TorchGroups, Work
from worker_runtime.groups.works import await_works, end_before

# An interrupted operation raises within milliseconds; now and then gloo forgets one, and then waiting on is useless.
INTERRUPT_LIMIT_SECONDS = 0.2
_OF_THE_JOB = frozenset({Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET})


class Runner:
    """Owns the torch groups; `start` is called by whoever drives, one release after the other.

    Args:
        rank: of this worker.
        groups: None in a world of one.
        sets: which it changes.

    is_unsure: something was begun of which nothing is known.
    """

    def __init__(self, rank: int, groups: TorchGroups | None, sets: ProcessSets) -> None:
        self._rank = rank
        self._groups = groups
        self._sets = sets
        self._neutral: list[Sequence[Work]] = []
        self._loose: list[Sequence[Work]] = []  # of operations that have failed
        self.is_unsure = False

    def start(self, operation: Operation[object], terms: Release) -> Sequence[Work] | RuntimeError:
        """Begin to communicate; the error when that cannot be begun, without the frames that hold the group."""
        groups = self._groups
        question = terms.question
        try:
            self.change_sets(terms)
            if groups is None or question.signature.kind in _OF_THE_JOB:
                return ()
            version = self._sets.version(question.process_set)
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
            device: for operations on CUDA: whoever drives may have another current one than the program.
        """
        if terms.question.signature.payload_dtype:
            return None  # nobody communicates: the others would not come to connect a group
        self._neutral = [works for works in self._neutral if not all(work.is_completed() for work in works)]
        neutral = make_neutral(terms, self._rank, device if terms.question.signature.device != "cpu" else None)
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
                self._sets.add(terms.value, terms.extents[0], terms.index)
            case Kind.REMOVE_SET:
                (number,) = terms.extents[0]
                if self._groups is not None:
                    self._groups.end(self._sets.version(number))
                self._sets.remove(number)

    def keep(self, works: Sequence[Work]) -> None:
        """Nobody waits for these any more, since one of them has failed; the others may be under way still."""
        self._loose.append(works)

    def interrupt(self) -> bool:
        """Make what runs raise at once, here and in the peers; whether that has succeeded, see `Interruptible`."""
        groups = self._groups
        return groups is None or groups.interrupt()

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for so long; "" for none."""
        groups = self._groups
        return "" if groups is None else groups.find_silent(limit_seconds)

    def close(self, running: Iterable[Sequence[Work]]) -> bool:
        """End the groups; False where something that runs does not end, and they had to be abandoned.

        Args:
            running: what was started and has not been waited for.
        """
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
        """In a forked child: the groups' threads and connections belong to the parent."""
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.abandon()


def _end_all(begun: Iterable[Sequence[Work]], deadline_seconds: float) -> bool:
    """Give each its chance, also after one has not ended."""
    return all([end_before(works, deadline_seconds) for works in begun])  # noqa: C419 - see above
