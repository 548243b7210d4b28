"""The operations that somebody still waits for; they belong to the process, and outlive generations.

Beside them stands how far the ranks have trained together, as this rank knows it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from worker_runtime.collectives.agreements import Commit
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Release
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.losses import Retry, is_made_anew
from worker_runtime.groups.torch_groups import Work, end_before


class Steps:
    """Of one engine.

    Args:
        rank: of this worker.
        size: of the job.

    original_rank: this worker's rank when the engine was made.
    original_ranks: the ranks that the present members had when the engine was made, by their present ranks.
    committed: how many steps all ranks have committed, and the original ranks of those that took part in the last one.
        It counts the steps of the last rank that is left, too, which waits for no other rank.
    rounds: the commit rounds that were completed, by set.
    has_stepped: all ranks have completed a step.
    is_stopping: a stop notice for the job had come when the last of these was released; the same on all ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.original_rank = rank
        self.original_ranks = tuple(range(size))
        self.committed = 0, self.original_ranks
        self.rounds: Counter[int] = Counter()
        self.has_stepped = self.is_stopping = False

    def note_step(self, process_set: int, *, is_stopping: bool) -> None:
        """A step of a set is complete on this rank.

        Args:
            process_set: its number.
            is_stopping: a stop notice for the job had come before the step's last release.
        """
        if process_set == GLOBAL_SET:
            self.has_stepped = True
            self.is_stopping |= is_stopping

    def note_commit(self, process_set: int, ranks: Sequence[int]) -> None:
        """All ranks of the job, or of one of its sets, have committed a step; by the ranks of the generation."""
        if process_set == GLOBAL_SET:
            self.committed = self.committed[0] + 1, tuple(self.original_ranks[rank] for rank in ranks)


class InFlight:
    """Handles by set and name, from their submission until their result is used.

    Args:
        steps: of the engine.
        retry: the loss policy, where operations are run again.

    handles: to be looked up.
    lock: under which an operation becomes done, and one generation follows another.
    changed: is notified when a handle or the generation may have changed.
    """

    def __init__(self, steps: Steps, retry: Retry | None) -> None:
        self._steps = steps
        self._retry = retry
        self.handles: dict[tuple[int, str], Handle[Any]] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held it."""
        self.lock = threading.RLock()  # a signal's handler may call shutdown(), and nothing else
        self.changed = threading.Condition(self.lock)

    def __iter__(self) -> Iterator[Handle[Any]]:
        return iter(list(self.handles.values()))

    def put(self, handle: Handle[Any]) -> None:
        """It was submitted."""
        question = handle.operation.question
        self.handles[question.process_set, question.name] = handle

    def forget(self, handle: Handle[Any]) -> bool:
        """Its result is used, or it has failed: its name is free. Whether nobody has told so before."""
        question = handle.operation.question
        key = question.process_set, question.name
        if self.handles.get(key) is not handle:
            return False
        del self.handles[key]
        return True

    def take_all(self) -> list[Handle[Any]]:
        """All of them; none is left."""
        handles, self.handles = list(self.handles.values()), {}
        return handles

    def fail_pending(self, make_error: Callable[[str], Exception]) -> None:
        """What is not answered yet fails, with the error that is made of its title."""
        for handle in self:
            if not handle.is_answered:
                handle.fail(make_error(handle.title))

    def settle(self, handle: Handle[Any], terms: Release, generation: Generation) -> bool:
        """Its works have ended well; whether its result will be used: False where it was interrupted before."""
        with self.lock:
            if handle.terms is not terms:
                return False
            handle.succeed()
            self.note_end(handle, terms, generation)
        return True

    def succeed(self, handle: Handle[Any], terms: Release, generation: Generation) -> bool:
        """Whether a released operation has ended well: then it is done, though nobody has waited for it yet.

        The caller holds the lock.
        """
        if not _have_succeeded(handle.works):
            return False
        handle.succeed()
        self.note_end(handle, terms, generation)
        return True

    def note_end(self, handle: Handle[Any], terms: Release, generation: Generation) -> None:
        """It has ended well, unless that was noted before. The caller holds the lock."""
        if not self.forget(handle) or self._retry is None:
            return
        operation = handle.operation
        if is_made_anew(operation):
            return
        is_stopping = terms.index >= generation.stops_from
        if isinstance(operation, Commit):
            self._steps.note_commit(terms.question.process_set, terms.members)
            self._steps.note_step(terms.question.process_set, is_stopping=is_stopping)
        if terms.index >= 0:  # else this rank is alone, and nobody else waits for it
            self._retry.remember(operation, terms, handle.payload, is_stopping=is_stopping)


def _have_succeeded(works: Sequence[Work]) -> bool:
    """Whether all of them have ended well; those that end soon are waited for."""
    try:
        return end_before(works, 0.0) and all(work.wait() for work in works)
    except RuntimeError:
        return False
