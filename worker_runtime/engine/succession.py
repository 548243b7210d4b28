"""Brings an engine from one generation into the next: it is suspended, adopts the next generation, and is resumed.

Between the two nothing raises and nothing returns: a thread that waits goes on waiting, and what is submitted waits as
well. When the engine is resumed, each pending operation is run again with the ranks that are left, but for those of an
optimizer's step, which is run again as a whole by its reducer (`StepRevokedError`), and for rounds that are known to be
done.

What makes this right is the snapshot: it is taken under the lock under which every operation becomes done, after the
sequencer has said that nothing more is released, and nothing of the old generation becomes done after it.
"""

from collections.abc import Mapping
from typing import Any

from worker_runtime.collectives.agreements import AddSet, Commit
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.operation import Handle, State
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.losses import STOPPING, Retry, decode_answer, is_made_anew
from worker_runtime.errors import HorovodInternalError, OperationFailedError, StuckError
from worker_runtime.rendezvous import JoinReason, PendingOperation, Report, Verdict

_HALT_SECONDS = 0.3  # for the sequencer to say that nothing more comes: it may be what has gone


class Succession:
    """Of the generations of one engine; for the thread that recovers, but for the two notes.

    Args:
        engine: whose operations are run again.
        retry: its loss policy.
    """

    def __init__(self, engine: Engine, retry: Retry) -> None:
        self.engine = engine
        self._retry = retry
        self._indices: dict[Handle[Any], int] = {}  # of operations that had been released when they were interrupted
        self._reported: set[Handle[Any]] = set()
        self._departed: set[tuple[int, int]] = set()  # generations, and ranks in them
        self._interrupted = 0  # the newest generation that is known to have been

    def suspend(self, reason: str) -> None:
        """Stop all that is under way, here and in the peers; what is pending waits from now on. May be repeated.

        `disconnect` has to follow, but later: it takes longer than the others have to wait for the report.

        Args:
            reason: why, for the peers.

        Raises:
            StuckError: what is under way cannot be stopped.
        """
        engine = self.engine
        with engine.ending:
            if engine.is_closed:
                return
            generation = engine.current
            if not generation.interrupt():
                raise StuckError
            if generation.driver is not None:
                generation.driver.halt(reason, _HALT_SECONDS)
            with engine.in_flight.changed:
                generation.is_over = True
                engine.is_suspended = True
                for handle in engine.in_flight:
                    generation.keep(handle.works)
                self._take_stock()
                engine.in_flight.changed.notify_all()

    def disconnect(self) -> None:
        """Wait for the end of what was suspended, and end its connections: nothing more is written by it."""
        with self.engine.ending:
            if self.engine.is_suspended:
                self.engine.current.close()

    def report(self) -> Report:
        """What is pending, as of one that would go on where it stands; only while suspended."""
        engine = self.engine
        with engine.in_flight.lock:
            self._reported = {handle for handle in engine.in_flight if not handle.is_answered}
            pending = [self._describe(handle) for handle in self._reported if not is_made_anew(handle.operation)]
            return Report(
                JoinReason.CONTINUE,
                pending=tuple(pending),
                completed=tuple(self._retry.list_completed()),
                seen=engine.current.seen,
                floor=self._retry.floor,
            )

    def adopt(self, number: int, rank: int, size: int, verdict: Verdict) -> None:
        """Belong to the next generation, whose members are not connected yet; what its verdict calls done is done.

        Args:
            number: of the generation.
            rank: of this worker in it.
            size: of the generation.
            verdict: RETRY.
        """
        engine, generation = self.engine, Generation(number, rank, size)
        self.disconnect()
        ranks = {old: new for new, old in enumerate(verdict.survivors)}
        done = {(each.ranks, each.number, each.name): each.answer for each in verdict.done}
        with engine.in_flight.changed:
            former = engine.current.sets
            engine.current, engine.moved = generation, ranks
            generation.sets.move_from(former, ranks)
            self._retry.forget()
            for handle in engine.in_flight:
                if not handle.is_answered:
                    self._carry_over(handle, former.list_ranks(handle.operation.question.process_set), done)
            engine.steps.original_ranks = tuple(engine.steps.original_ranks[rank] for rank in verdict.survivors)
            engine.rank, engine.size, engine.generation = rank, size, number
            engine.in_flight.changed.notify_all()

    def resume(self, group: Group | None, link: Link | None) -> None:
        """Go on in the generation that was adopted.

        Args:
            group: of it, which the engine owns from now on; None in a world of one.
            link: to its sequencer; the same.

        Raises:
            HorovodInternalError: it has failed before all process sets were known in it; still suspended.
        """
        engine = self.engine
        generation = engine.current
        if group is not None and link is not None:
            engine.connect_current(group, link)
            self._tell_early_news(generation)
            self._announce_sets(generation)
        with engine.in_flight.changed:
            if engine.is_closed:  # meanwhile: what was made since then is nobody's
                generation.close()
                return
            engine.is_suspended = False
            asked = [handle for handle in engine.in_flight if not handle.is_answered]
            engine.in_flight.changed.notify_all()
        for handle in asked:
            if generation.driver is not None and generation.sets.count(handle.operation.question.process_set) > 1:
                generation.driver.ask(handle, at_once=True, is_awaited=False)
            else:
                with engine.in_flight.changed:
                    engine.run_alone(handle)
                    engine.in_flight.changed.notify_all()

    def note_departed(self, number: int, rank: int) -> None:
        """A member has ended well: the sequencer refuses what needs it. For any thread, also while this is resumed.

        Args:
            number: of the generation.
            rank: of the member in it.
        """
        self._departed.add((number, rank))
        generation = self.engine.current
        if generation.number == number and generation.driver is not None:
            generation.driver.tell_departed(rank)

    def note_interrupted(self, number: int, reason: str) -> None:
        """A generation was interrupted: while this is resumed in it, it must not wait for who is lost. For any thread.

        Args:
            number: of the generation.
            reason: why, for the peers.
        """
        self._interrupted = max(self._interrupted, number)
        generation = self.engine.current
        if self.engine.is_suspended and generation.number == number and generation.driver is not None:
            generation.driver.halt(reason, 0.0)

    def _take_stock(self) -> None:
        """Decide for each operation in flight whether it is done; the caller holds the lock."""
        engine = self.engine
        for handle in engine.in_flight:
            terms = handle.terms
            if (
                handle.state is State.RELEASED
                and terms is not None
                and not engine.in_flight.succeed(handle, terms, engine.current)
            ):
                self._indices[handle] = terms.index
                handle.reset()

    def _describe(self, handle: Handle[Any]) -> PendingOperation:
        operation, index = handle.operation, self._indices.get(handle)
        return PendingOperation(
            ranks=self.engine.current.sets.list_ranks(operation.question.process_set),
            name=operation.question.name,
            title=operation.title,
            number=operation.number if isinstance(operation, Commit) else 0,
            index=index,
            root=operation.needed_rank,
            obstacle=operation.find_obstacle(is_begun=index is not None),
        )

    def _tell_early_news(self, generation: Generation) -> None:
        """What was heard of others' ends before the generation was connected; what is heard later is told then.

        Raises:
            OperationFailedError: the generation was interrupted.
        """
        if self._interrupted >= generation.number:
            raise OperationFailedError("recovery", generation.rank, "the generation was interrupted")
        for number, rank in tuple(self._departed):
            if number == generation.number:
                self.note_departed(number, rank)

    def _announce_sets(self, generation: Generation) -> None:
        """Make the process sets known to the sequencer of their generation, under the numbers that they have.

        Also those that have lost members, which no other is to be taken for; but not those of which nobody is left.
        """
        for number in generation.sets.numbers:
            if number == GLOBAL_SET or generation.driver is None or not generation.sets.count(number):
                continue
            among = generation.sets.find(GLOBAL_SET, "")
            operation = AddSet(generation.sets.list_ranks(number), among, f"add_process_set.{number}", number)
            handle = Handle(operation)
            generation.driver.ask(handle, at_once=True, is_awaited=True)
            generation.driver.await_answer(handle)
            if handle.terms is None:
                raise OperationFailedError(operation.title, generation.rank, generation.failure or "it was refused")

    def _carry_over(self, handle: Handle[Any], former: tuple[int, ...], done: Mapping[tuple[Any, ...], bytes]) -> None:
        """What becomes of a pending operation. The caller holds the lock.

        Args:
            handle: of the operation.
            former: the ranks of its set by their former numbers.
            done: what the verdict calls done, by ranks, number, name: the sequencer's answer, where it had one.
        """
        engine = self.engine
        self._indices.pop(handle, None)
        operation = handle.operation
        question = operation.question
        number = operation.number if isinstance(operation, Commit) else 0
        answer = done.get((former, number, "" if number else question.name))
        if answer is not None and handle in self._reported:
            terms, payload = decode_answer(b"" if number else answer, question, former)
            handle.begin(terms, (), payload)
            if number:
                engine.steps.rounds[question.process_set] = number
                engine.steps.note_commit(question.process_set, former)
                engine.steps.note_step(question.process_set, is_stopping=answer == STOPPING)
            engine.in_flight.forget(handle)
            return
        try:
            handle.operation = engine.renew(operation)
        except HorovodInternalError as error:
            handle.fail(error)
            engine.in_flight.forget(handle)
