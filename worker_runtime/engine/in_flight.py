"""The operations in flight, which survive changes of the generation; and the steps that the ranks have completed.

All transitions of a submitted operation's `Handle` are here. Elsewhere a handle is only read.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from worker_runtime.collectives.agreements import CommitRound
from worker_runtime.coordination.messages import Answered
from worker_runtime.coordination.operation import Handle, Operation, OperationState
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Release
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.losses import Retry, runs_with_step
from worker_runtime.engine.operation_recorder import OperationRecorder
from worker_runtime.groups.torch_groups import Work, end_before


class Steps:
    """The steps that the ranks of an engine have completed, as this rank knows them.

    Args:
        rank: this worker's rank.
        size: the size of the job.

    original_rank: this worker's rank when the engine was created.
    original_ranks: the present members' ranks when the engine was created, in the order of their present ranks.
    completed: the number of steps that all ranks have completed, with those of a single surviving rank; and the
        original ranks that took part in the last one.
    members: the original ranks that took part in the last completed step, or in a later `Engine.agree_on_members`.
    rounds: the number of completed commit rounds of each set.
    has_stepped: all ranks have completed a step.
    is_stopping: the last step was released after a stop notice for the job; the same on all ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.original_rank = rank
        self.original_ranks = tuple(range(size))
        self.completed = 0, self.original_ranks
        self.members = self.original_ranks
        self.rounds: Counter[int] = Counter()
        self.has_stepped = self.is_stopping = False

    def note_step(self, process_set: int, *, is_stopping: bool) -> None:
        """Note that this rank has completed a step of a set.

        Args:
            process_set: the number of the set.
            is_stopping: the step's last release came after a stop notice for the job.
        """
        if process_set == GLOBAL_SET:
            self.has_stepped = True
            self.is_stopping |= is_stopping

    def note_completed_step(self, process_set: int, ranks: Sequence[int]) -> None:
        """Note that these ranks, all members of a set, have completed a step."""
        if process_set == GLOBAL_SET:
            self.members = tuple(self.original_ranks[rank] for rank in ranks)
            self.completed = self.completed[0] + 1, self.members


class InFlight:
    """The handles in flight, from their submission until their result is used.

    Args:
        steps: the engine's steps.
        retry: the loss policy of an elastic job; else None.

    handles: the handles by set and name.
    lock: held when an operation completes, and when the generation changes.
    changed: notified when a handle or the generation may have changed.
    recorder: notes when operations begin and end, while a timeline is recorded.
    """

    def __init__(self, steps: Steps, retry: Retry | None) -> None:
        self._steps = steps
        self._retry = retry
        self.recorder: OperationRecorder | None = None
        self.handles: dict[tuple[int, str], Handle[Any]] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        """Create a new lock, also in a forked child: another thread of the parent may have held the earlier one."""
        self.lock = threading.RLock()  # reentrant, since a signal's handler may call shutdown()
        # Write `with lock`, not `with changed`: `Condition.__enter__` is Python code. A signal handler that raises in
        # it would leave the lock held.
        self.changed = threading.Condition(self.lock)

    def __iter__(self) -> Iterator[Handle[Any]]:
        return iter(list(self.handles.values()))

    def forget(self, handle: Handle[Any]) -> bool:
        """Remove a handle and free its name; return whether it was there."""
        request = handle.operation.request
        key = request.process_set, request.name
        if self.handles.get(key) is not handle:
            return False
        del self.handles[key]
        return True

    def take_all(self) -> list[Handle[Any]]:
        """Remove and return all handles."""
        handles, self.handles = list(self.handles.values()), {}
        return handles

    def release(
        self, handle: Handle[Any], release: Release, works: Sequence[Work], payload: memoryview, generation: Generation
    ) -> None:
        """Note the release of an operation and its started works, unless the generation is over."""
        with self.lock:
            if not generation.is_over:
                handle.begin(release, works, payload)
                if self.recorder is not None:
                    self.recorder.note_start(release, works)

    def finish_together(
        self, response: Answered, unpack: Callable[[], Sequence[object] | None], generation: Generation
    ) -> bool:
        """Finish operations that were released together; return False if each must be run separately."""
        with self.lock:  # held throughout: a suspension in between would lose results written in place
            if generation.is_over:
                return True
            results = unpack()
            if results is None:
                return False
            for handle, release, result in zip(response.handles, response.releases, results, strict=True):
                handle.complete(release, result)
                self.note_end(handle, release, generation)
        return True

    def refuse(self, handle: Handle[Any], error: Exception, following: Handle[Any] | None = None) -> None:
        """Fail an operation, and free its name, or give it to another handle. The caller holds the lock."""
        if following is None:
            self.forget(handle)
        else:
            request = following.operation.request
            self.handles[request.process_set, request.name] = following  # no other thread uses the name in between
        handle.fail(error)

    def fail(self, handle: Handle[Any], error: Exception) -> None:
        """Make a wait raise the error, unless the operation has already succeeded or failed."""
        handle.fail(error)

    def drop_works(self, handle: Handle[Any]) -> None:
        """Drop the works of an operation that has ended: they hold the group's connections."""
        handle.works = ()

    def renew(self, handle: Handle[Any], operation: Operation[Any]) -> None:
        """Replace a pending operation by that of the next generation. The caller holds the lock."""
        handle.operation = operation

    def interrupt(self, generation: Generation) -> dict[Handle[Any], int]:
        """Decide for each released operation whether it is done; the others are pending again.

        The caller holds the lock.

        Returns:
            The interrupted operations, with the indices of their releases.
        """
        indices = {}
        for handle in self:
            release = handle.release
            if (
                handle.state is OperationState.RELEASED
                and release is not None
                and not self.try_succeed(handle, release, generation)
            ):
                indices[handle] = release.index
                handle.reset()
        return indices

    def fail_pending(self, make_error: Callable[[str], Exception]) -> None:
        """Fail all unanswered operations with the error that `make_error` creates from the title."""
        for handle in self:
            if not handle.is_answered:
                handle.fail(make_error(handle.title))

    def finish(self, handle: Handle[Any], release: Release, generation: Generation) -> bool:
        """Compute the result of an operation whose works have completed; return False if it was interrupted before."""
        with self.lock:
            if handle.release is not release:
                return False
            handle.succeed()
            self.note_end(handle, release, generation)
        handle.finish(handle.operation.finish(release, handle.payload))
        return True

    def try_succeed(self, handle: Handle[Any], release: Release, generation: Generation) -> bool:
        """If the works of a released operation have completed, note that it is done; return whether they have.

        The caller holds the lock.
        """
        if not _have_succeeded(handle.works):
            return False
        handle.succeed()
        self.note_end(handle, release, generation)
        return True

    def note_end(self, handle: Handle[Any], release: Release, generation: Generation) -> None:
        """Note that an operation is done, once. The caller holds the lock."""
        if self.recorder is not None:
            self.recorder.note_end(release)
        if not self.forget(handle) or self._retry is None:
            return
        operation = handle.operation
        # A loss policy reports no gradients: they are reduced again only with their step.
        if runs_with_step(operation):
            return
        is_stopping = release.index >= generation.stops_from
        if isinstance(operation, CommitRound):
            self._steps.note_completed_step(release.request.process_set, release.members)
            self._steps.note_step(release.request.process_set, is_stopping=is_stopping)
        # The index is -1 if this rank is alone in the set.
        if release.index >= 0:
            self._retry.remember(operation, release, handle.payload, is_stopping=is_stopping)

    def note_joined_round(self, release: Release, number: int, generation: Generation) -> None:
        """Note a commit round of the other ranks, while this rank has joined. The caller holds the lock.

        It must be in this rank's report too: after a loss, a round that one rank has committed and another does not
        know is a contradiction.
        """
        if self._retry is not None and not generation.is_over:
            commit = CommitRound(generation.sets.find(release.request.process_set, "commit"), number)
            is_stopping = release.index >= generation.stops_from
            self._retry.remember(commit, release, memoryview(b""), is_stopping=is_stopping)


def _have_succeeded(works: Sequence[Work]) -> bool:
    """Whether all works have completed without an error; waits briefly for works that are about to."""
    try:
        return end_before(works, 0.0) and all(work.wait() for work in works)
    except RuntimeError:
        return False
