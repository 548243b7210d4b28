"""An executor that outlives the loss of ranks: it is suspended, and resumed in the next generation.

Between the two nothing raises and nothing returns: who waits goes on waiting, and what is submitted waits as well. When
it is resumed, each pending operation is run again with the ranks that are left, but for those of an optimizer's step,
which is run again as a whole by its reducer (`StepRevokedError`), and for rounds that are known to be done.

What makes this right is the snapshot: it is taken under the lock under which every operation becomes done, after the
sequencer has said that nothing more is released, and nothing of the old generation becomes done after it.

Long because suspending, reporting, adopting and resuming are one movement over the same handles under the same lock:
apart, none of them could be checked by reading.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from worker_runtime.collectives.agreements import AddSet, Commit
from worker_runtime.coordination.handle import Handle, State
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Release
from worker_runtime.coordination.wire import Frame
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.errors import HorovodInternalError, OperationFailedError, StepRevokedError, StuckError
from worker_runtime.groups.group import Group
from worker_runtime.groups.torch_groups import Work
from worker_runtime.groups.works import describe_cause, end_before
from worker_runtime.rendezvous import CompletedOperation, PendingOperation, Report, Verdict, Wish

ResultT = TypeVar("ResultT")

# Of so many operations that were done last a report tells. Survivors are never further apart than the sequencer's loss
# lets them be: the releases that one has read from its socket, and another has not.
_REMEMBERED = 256
_TOLD = 32  # so many of them are told with the sequencer's answer, so that others, who have not got it, can go on
_TOLD_BYTES = 1024  # if the answer is no longer than that, as that of a loss or an accuracy
STOPPING = b"s"  # what is told as the answer to a commit round before which a stop notice had come
_HALT_SECONDS = 0.3  # for the sequencer to say that nothing more comes: it may be what has gone
_ENDING_SECONDS = 10.0  # for the recovery to suspend, which may have to wait for a GPU
_LOOK_SECONDS = 0.5  # between two looks of who waits for the next generation; it is woken, so this is a second chance

# Makes the error of an operation, by its title, for which there is no next generation.
MakeError = Callable[[str], Exception]


class ElasticEngine(Engine):
    """Runs the operations of a job that outlives its workers.

    Args:
        group: of the generation; None in a world of one.
        link: to the sequencer; None in a world of one.
        tell_trouble: is told, in a sentence, of a generation that cannot go on; any thread may call it, repeatedly.
        generation: its number.
        lease_seconds: how long a host may be silent before it is lost.
    """

    is_elastic = True
    last_goodbye = Frame.EXIT  # one that ends with an error is lost, as one that is killed

    def __init__(
        self,
        group: Group | None,
        link: Link | None,
        tell_trouble: Callable[[int, str], None],
        generation: int,
        *,
        lease_seconds: float,
    ) -> None:
        super().__init__(group, link, lease_seconds=lease_seconds)
        self.generation = self._attempt.number = generation
        self._tell_trouble = tell_trouble
        self._changed = threading.Condition(self._lock)
        self._ending = threading.RLock()  # of an attempt: the program may close while the recovery suspends
        self._is_suspended = False
        self._make_error: MakeError | None = None  # set when there is nothing to be resumed
        self._completed: deque[CompletedOperation] = deque()
        self._floor = 0
        self._indices: dict[Handle[Any], int] = {}  # of operations that had been released when they were interrupted
        self._reported: set[Handle[Any]] = set()
        self._departed: set[tuple[int, int]] = set()  # generations, and ranks in them
        self._interrupted = 0  # the newest generation that is known to have been
        self._ranks: Mapping[int, int] = {}  # of the last change: each surviving rank's new one

    # What each operation goes through, where it differs from that of a job that ends with its first loss.

    def commit(self, among: Members) -> None:
        """See `Engine`; alone in the set there is nobody to wait for, and the step counts all the same."""
        if among.size > 1:
            super().commit(among)
        else:
            with self._lock:
                self._note_step(among.number, among.ranks)

    def _note_end(self, handle: Handle[Any], terms: Release) -> None:
        if self.is_in_flight(handle):  # else it was taken stock of already
            self._note_completed(handle, terms)
            self._forget(handle)

    def await_answer(self, handle: Handle[Any]) -> None:
        """See `Engine`; through any number of generations."""
        while not handle.is_answered:
            attempt = self._attempt
            if attempt.driver is not None:
                attempt.driver.await_answer(handle)
            with self._changed:
                if not handle.is_answered and self._closed:
                    handle.fail(self._explain_end(handle.title))
                elif not handle.is_answered and (self._is_suspended or self._attempt is attempt):
                    self._changed.wait(_LOOK_SECONDS)

    def listen(self) -> None:
        """See `Engine`; what gloo has forgotten is given up soon, since it will be run again."""
        attempt = self._attempt
        super().listen()
        if self._is_suspended and attempt.failure is not None:
            raise RuntimeError(attempt.failure)

    def _report_failure(self, handle: Handle[Any], terms: Release, error: RuntimeError) -> None:
        """See `Engine`: here the operation is not failed, but waits for what becomes of the generation."""
        self._tell_trouble(self._attempt.number, f"{handle.title} failed on rank {self.rank}: {describe_cause(error)}")
        with self._changed:
            while handle.state is State.RELEASED and handle.terms is terms and not self._closed:
                self._changed.wait(_LOOK_SECONDS)
            if self._closed:
                handle.fail(self._explain_end(handle.title))

    def end_attempt(self, attempt: Generation, reason: str) -> None:
        """See `Engine`: nothing fails."""
        self._tell_trouble(attempt.number, reason)

    def close(self, *, end: str = "") -> None:
        """See `Engine`."""
        # A signal's handler may come here in a thread for whose lock the recovery waits: then both end the attempt.
        is_alone = self._ending.acquire(timeout=_ENDING_SECONDS)
        try:
            super().close(end=end)
        finally:
            if is_alone:
                self._ending.release()
        with self._changed:
            self._changed.notify_all()

    # From one generation to the next.

    def suspend(self, reason: str) -> None:
        """Stop all that is under way, here and in the peers; what is pending waits from now on. May be repeated.

        `disconnect` has to follow, but not at once: it takes longer than the others have to wait for the report.

        Args:
            reason: why, for the peers.

        Raises:
            StuckError: what is under way cannot be stopped.
        """
        with self._ending:
            if not self._closed:
                self._suspend(reason)

    def _suspend(self, reason: str) -> None:
        attempt = self._attempt
        if not attempt.runner.interrupt():
            raise StuckError
        if attempt.driver is not None:
            attempt.driver.halt(reason, _HALT_SECONDS)
        with self._changed:
            attempt.end()
            self._is_suspended = True
            for handle in self._in_flight.values():
                attempt.runner.keep(handle.works)
            self._take_stock()
            self._changed.notify_all()

    def disconnect(self) -> None:
        """Wait for the end of what was suspended, and end its connections: nothing more is written by it."""
        with self._ending:
            if self._is_suspended:
                self._attempt.close(())

    def report(self) -> Report:
        """What is pending, as of one that would go on where it stands; only while suspended."""
        with self._lock:
            self._reported = {handle for handle in self._in_flight.values() if not handle.is_answered}
            pending = [self._describe(handle) for handle in self._reported if not _is_made_anew(handle.operation)]
            return Report(
                Wish.CONTINUE,
                pending=tuple(pending),
                completed=tuple(self._list_completed()),
                seen=self._attempt.seen,
                floor=self._floor,
            )

    def adopt(self, number: int, rank: int, size: int, verdict: Verdict) -> None:
        """Belong to the next generation, whose members are not connected yet; what its verdict calls done is done.

        Args:
            number: of the generation.
            rank: of this worker in it.
            size: of the generation.
            verdict: RETRY.
        """
        attempt = Generation(self, self._lock, number, rank, size)
        self.disconnect()
        ranks = {old: new for new, old in enumerate(verdict.survivors)}
        done = {(each.ranks, each.number, each.name): each.answer for each in verdict.done}
        with self._changed:
            former = self._attempt.sets
            self._attempt, self._ranks = attempt, ranks
            attempt.sets.move_from(former, ranks)
            self._completed.clear()
            self._floor = 0
            for handle in list(self._in_flight.values()):
                if not handle.is_answered:
                    self._carry_over(handle, former.list_ranks(handle.operation.question.process_set), done)
            self.lineage = tuple(self.lineage[rank] for rank in verdict.survivors)
            self.rank, self.size, self.generation = rank, size, number
            self._changed.notify_all()

    def resume(self, group: Group | None, link: Link | None) -> None:
        """Go on in the generation that was adopted.

        Args:
            group: of it, which this owns from now on; None in a world of one.
            link: to its sequencer; the same.

        Raises:
            HorovodInternalError: it has failed before all process sets were known in it; still suspended.
        """
        attempt = self._attempt
        if group is not None and link is not None:
            attempt.connect(group, link)
            self._tell_early_news(attempt)
            self._announce_sets(attempt)
        with self._changed:
            if self._closed:  # meanwhile: what was made since then is nobody's
                attempt.close(())
                return
            self._is_suspended = False
            asked = [handle for handle in self._in_flight.values() if not handle.is_answered]
            self._changed.notify_all()
        for handle in asked:
            if attempt.driver is not None and attempt.sets.count(handle.operation.question.process_set) > 1:
                attempt.driver.ask(handle, at_once=True, is_awaited=False)
            else:
                with self._changed:
                    self._run_alone(handle)
                    self._changed.notify_all()

    def note_departed(self, generation: int, rank: int) -> None:
        """A member has ended well: the sequencer refuses what needs it. For any thread, also while this is resumed."""
        self._departed.add((generation, rank))
        attempt = self._attempt
        if attempt.number == generation and attempt.driver is not None:
            attempt.driver.tell_departed(rank)

    def note_interrupted(self, generation: int, reason: str) -> None:
        """A generation was interrupted: while this is resumed in it, it must not wait for who is lost. For any thread.

        Args:
            generation: its number.
            reason: why, for the peers.
        """
        self._interrupted = max(self._interrupted, generation)
        attempt = self._attempt
        if self._is_suspended and attempt.number == generation and attempt.driver is not None:
            attempt.driver.halt(reason, 0.0)

    def fail_all(self, make_error: MakeError) -> None:
        """There is nothing to be resumed: what is pending fails, and so does whatever is asked for later."""
        with self._changed:
            self._make_error = make_error
            handles = list(self._in_flight.values())
            for handle in handles:
                if not handle.is_answered:
                    handle.fail(make_error(handle.title))
            self._changed.notify_all()

    def _admit(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        if self._make_error is not None:
            raise self._make_error(operation.title)
        former, among = operation.among, self._attempt.sets.find(operation.among.number, operation.title)
        # What was made before the generation changed comes after; only a step must know even where nobody was lost.
        is_present = former.generation == among.generation if operation.is_of_step else former.ranks == among.ranks
        return operation if is_present else self._renew(operation)

    def _make_way(self, earlier: Handle[Any]) -> bool:
        """See `Engine`; what was interrupted is run again, and so is in the way still."""
        if not earlier.is_done():
            return False
        return earlier.terms is None or earlier.is_failed or self._note_success(earlier, earlier.terms)

    def _may_ask(self, handle: Handle[Any], key: tuple[int, str]) -> bool:
        if self._is_suspended or self._attempt.failure is not None:
            self._in_flight[key] = handle
            return False
        return True

    def _note_completed(self, handle: Handle[Any], terms: Release) -> None:
        operation = handle.operation
        if _is_made_anew(operation):
            return
        number = 0
        if isinstance(operation, Commit):
            number = operation.number
            self._note_step(terms.question.process_set, terms.members)
            self.note_step(terms.question.process_set, terms.index)
        if terms.index < 0:
            return  # alone: nobody else waits for it
        name, payload = terms.question.name, handle.payload
        answer = bytes(payload) if payload.nbytes <= _TOLD_BYTES else b""
        if number and terms.index >= self._attempt.stops_from:
            answer = STOPPING
        self._completed.append(CompletedOperation(terms.members, name, terms.index, number, answer))
        if len(self._completed) > _REMEMBERED:
            self._floor = max(self._floor, self._completed.popleft().index + 1)

    def _list_completed(self) -> Iterator[CompletedOperation]:
        untold = len(self._completed) - _TOLD
        for place, operation in enumerate(self._completed):
            yield replace(operation, answer=b"") if place < untold and not operation.number else operation

    def _note_step(self, process_set: int, ranks: Sequence[int]) -> None:
        """All ranks of the job, or of one of its sets, have committed a step; by the ranks of the generation."""
        if process_set == GLOBAL_SET:
            self.committed = self.committed[0] + 1, tuple(self.lineage[rank] for rank in ranks)

    def _take_stock(self) -> None:
        """Decide for each operation in flight whether it is done; the caller holds the lock."""
        for handle in list(self._in_flight.values()):
            terms = handle.terms
            if handle.state is State.RELEASED and terms is not None and not self._note_success(handle, terms):
                self._indices[handle] = terms.index
                handle.reset()

    def _note_success(self, handle: Handle[Any], terms: Release) -> bool:
        """Whether a released operation has ended well: then it is done, though nobody has waited for it yet."""
        if not _have_succeeded(handle.works):
            return False
        handle.succeed()
        self._note_completed(handle, terms)
        self._forget(handle)
        return True

    def _describe(self, handle: Handle[Any]) -> PendingOperation:
        operation, index = handle.operation, self._indices.get(handle)
        return PendingOperation(
            ranks=self._attempt.sets.list_ranks(operation.question.process_set),
            name=operation.question.name,
            title=operation.title,
            number=operation.number if isinstance(operation, Commit) else 0,
            index=index,
            root=operation.needed_rank,
            obstacle=operation.find_obstacle(is_begun=index is not None),
        )

    def _tell_early_news(self, attempt: Generation) -> None:
        """What the thread that hears of others' ends has heard before the attempt was connected; later it tells itself.

        Raises:
            OperationFailedError: the generation was interrupted.
        """
        if self._interrupted >= attempt.number:
            raise OperationFailedError("recovery", attempt.rank, "the generation was interrupted")
        for number, rank in tuple(self._departed):
            if number == attempt.number:
                self.note_departed(number, rank)

    def _announce_sets(self, attempt: Generation) -> None:
        """Make the process sets known to the sequencer of their generation, under the numbers that they have.

        Also those that have lost members, which no other is to be taken for; but not those of which nobody is left.
        """
        for number in attempt.sets.numbers:
            if number == GLOBAL_SET or attempt.driver is None or not attempt.sets.count(number):
                continue
            among = attempt.sets.find(GLOBAL_SET, "")
            operation = AddSet(attempt.sets.list_ranks(number), among, f"add_process_set.{number}", number)
            handle = Handle(operation)
            attempt.driver.ask(handle, at_once=True, is_awaited=True)
            attempt.driver.await_answer(handle)
            if handle.terms is None:
                raise OperationFailedError(operation.title, attempt.rank, attempt.failure or "it was refused")

    def _carry_over(self, handle: Handle[Any], former: tuple[int, ...], done: Mapping[tuple[Any, ...], bytes]) -> None:
        """What becomes of a pending operation. The caller holds the lock.

        Args:
            handle: of the operation.
            former: the ranks of its set by their former numbers.
            done: what the verdict calls done, by ranks, number, name: the sequencer's answer, where it had one.
        """
        self._indices.pop(handle, None)
        operation = handle.operation
        question = operation.question
        number = operation.number if isinstance(operation, Commit) else 0
        answer = done.get((former, number, "" if number else question.name))
        if answer is not None and handle in self._reported:
            handle.begin(Release(-1, question, former), (), memoryview(answer))
            if number:
                self._commits[question.process_set] = number
                self._note_step(question.process_set, former)
                self.has_stepped |= question.process_set == GLOBAL_SET
                self.is_stopping |= question.process_set == GLOBAL_SET and answer == STOPPING
            self._forget(handle)
            return
        try:
            handle.operation = self._renew(operation)
        except HorovodInternalError as error:
            handle.fail(error)
            self._forget(handle)

    def _renew(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        """The operation for the present generation; raises HorovodInternalError where it cannot be made."""
        if operation.is_of_step:
            raise StepRevokedError
        among = self._attempt.sets.find(operation.among.number, operation.title)
        try:
            return operation.renew(among, self._ranks)
        except (NotImplementedError, KeyError, ValueError):
            cause = "it was made for ranks of which some are lost"
            raise OperationFailedError(operation.title, self.rank, cause) from None


def _is_made_anew(operation: Operation[Any]) -> bool:
    """Whether whoever waits for it runs more than it again: then nobody else need know of it."""
    return operation.is_of_step and not isinstance(operation, Commit)


def _have_succeeded(works: Sequence[Work]) -> bool:
    """Whether all of them have ended well; those that end soon are waited for."""
    try:
        return end_before(works, 0.0) and all(work.wait() for work in works)
    except RuntimeError:
        return False
