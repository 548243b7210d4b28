"""Moves an engine from one generation to the next: suspend, adopt, resume.

Meanwhile threads that wait continue to wait, and submitted operations wait too. `resume` runs each pending operation
again with the surviving ranks, with two exceptions: the operations of an optimizer's step raise StepRevokedError, and
the reducer runs the whole step again; commit rounds that the recovery decision calls done are not repeated.

`suspend` decides for each running operation whether it is done. It decides under the lock that every completion holds,
after the sequencer has reported that it releases nothing more. So no operation of the old generation completes later.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from worker_runtime.collectives.agreements import AddSet, CommitRound
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.losses import STOPPING, Retry, decode_response, runs_with_step
from worker_runtime.errors import HorovodInternalError, OperationFailedError, StuckError
from worker_runtime.rendezvous import JoinReason, PendingOperation, RecoveryDecision, Report

# An operation that the recovery decision calls done: its ranks, its commit round or 0, and its name.
_Key: TypeAlias = tuple[tuple[int, ...], int, str]

_HALT_SECONDS = 0.3  # how long to wait for the sequencer's last response: it may itself be lost


class Succession:
    """Moves one engine between generations. For the recovery thread; the two `note_` methods are for any thread.

    Args:
        engine: the engine.
        retry: its loss policy.
    """

    def __init__(self, engine: Engine, retry: Retry) -> None:
        self.engine = engine
        self._retry = retry
        self._indices: dict[Handle[Any], int] = {}  # the release indices of interrupted operations
        self._reported: set[Handle[Any]] = set()
        self._departed: set[tuple[int, int]] = set()  # (generation, rank) of members that have exited with 0
        self._interrupted = 0  # the newest generation that was interrupted

    def suspend(self, reason: str) -> None:
        """Abort all running operations, here and on the peers; pending operations wait. May be repeated.

        Call `disconnect` afterwards, but only after the report is sent: it takes time.

        Args:
            reason: the reason, for the peers.

        Raises:
            StuckError: a running operation cannot be aborted.
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

            with engine.in_flight.lock:
                generation.is_over = True
                engine.is_suspended = True
                for handle in engine.in_flight:
                    generation.keep(handle.works)
                self._indices |= engine.in_flight.interrupt(generation)
                engine.in_flight.changed.notify_all()

    def disconnect(self) -> None:
        """Close the suspended generation, after which its operations write to no tensor."""
        with self.engine.ending:
            if self.engine.is_suspended:
                self.engine.current.close()

    def report(self) -> Report:
        """The report of a worker that can continue: its pending and completed operations. Only while suspended."""
        engine = self.engine
        with engine.in_flight.lock:
            self._reported = {handle for handle in engine.in_flight if not handle.is_answered}
            pending = [self._describe(handle) for handle in self._reported if not runs_with_step(handle.operation)]
            return Report(
                JoinReason.CONTINUE,
                pending=tuple(pending),
                completed=tuple(self._retry.list_completed()),
                seen=engine.current.seen,
                floor=self._retry.floor,
            )

    def adopt(self, number: int, rank: int, size: int, decision: RecoveryDecision) -> None:
        """Enter the next generation, which is not connected yet. Complete the operations that its decision calls done.

        Args:
            number: the number of the generation.
            rank: this worker's rank in it.
            size: the size of the generation.
            decision: the recovery decision, which is RETRY.
        """
        engine, generation = self.engine, Generation(number, rank, size)
        self.disconnect()
        ranks = {old: new for new, old in enumerate(decision.survivors)}
        done = {(each.ranks, each.number, each.name): each.response for each in decision.done}
        with engine.in_flight.lock:
            generation.sets.move_from(engine.current.sets, ranks)
            engine.current, engine.moved = generation, ranks
            self._retry.forget()
            for handle in engine.in_flight:
                if not handle.is_answered:
                    self._carry_over(handle, handle.operation.among.ranks, done)
            engine.steps.original_ranks = tuple(engine.steps.original_ranks[rank] for rank in decision.survivors)
            engine.rank, engine.size, engine.generation = rank, size, number
            engine.in_flight.changed.notify_all()

    def resume(self, group: Group | None, link: Link | None) -> None:
        """Connect the adopted generation, and run the pending operations again.

        Args:
            group: the group, which the engine then owns; None in a world of one.
            link: the connection to the sequencer, which it owns too.

        Raises:
            HorovodInternalError: the generation failed while its process sets were registered. Still suspended.
        """
        engine = self.engine
        generation = engine.current
        if group is not None and link is not None:
            engine.connect_current(group, link)
            self._send_early_notes(generation)
            self._announce_sets(generation)

        with engine.in_flight.lock:
            # The engine may have been closed meanwhile.
            if engine.is_closed:
                generation.close()
                return
            engine.is_suspended = False
            asked = [handle for handle in engine.in_flight if not handle.is_answered]
            engine.in_flight.changed.notify_all()

        for handle in asked:
            if generation.driver is not None and generation.sets.count(handle.operation.request.process_set) > 1:
                generation.driver.ask(handle, at_once=True, is_awaited=False)
            else:
                with engine.in_flight.lock:
                    engine.run_alone(handle)
                    engine.in_flight.changed.notify_all()

    def note_departed(self, number: int, rank: int) -> None:
        """Note that a member has exited with 0, so that the sequencer refuses operations that need it. For any thread.

        Args:
            number: the number of the generation.
            rank: the member's rank in it.
        """
        self._departed.add((number, rank))
        generation = self.engine.current
        if generation.number == number and generation.driver is not None:
            generation.driver.report_departed(rank)

    def note_interrupted(self, number: int, reason: str) -> None:
        """Note that a generation was interrupted, so that `resume` does not wait for lost ranks. For any thread.

        Args:
            number: the number of the generation.
            reason: the reason, for the peers.
        """
        self._interrupted = max(self._interrupted, number)
        generation = self.engine.current
        if self.engine.is_suspended and generation.number == number and generation.driver is not None:
            generation.driver.halt(reason, 0.0)

    def _describe(self, handle: Handle[Any]) -> PendingOperation:
        operation, index = handle.operation, self._indices.get(handle)
        return PendingOperation(
            ranks=operation.among.ranks,  # those of the set, also where that was removed meanwhile
            name=operation.request.name,
            title=operation.title,
            number=operation.number if isinstance(operation, CommitRound) else 0,
            index=index,
            root=operation.needed_rank,
            obstacle=operation.find_obstacle(is_begun=index is not None),
        )

    def _send_early_notes(self, generation: Generation) -> None:
        """Send the notes of members' exits that came before the generation was connected.

        Raises:
            OperationFailedError: the generation was interrupted.
        """
        if self._interrupted >= generation.number:
            raise OperationFailedError("recovery", generation.rank, "the generation was interrupted")
        for number, rank in tuple(self._departed):
            if number == generation.number:
                self.note_departed(number, rank)

    def _announce_sets(self, generation: Generation) -> None:
        """Register the process sets with the sequencer of the new generation, under their present numbers.

        Sets that have lost members are registered too, so that no other set gets their numbers; empty sets are not.
        """
        for number in generation.sets.numbers:
            if number == GLOBAL_SET or generation.driver is None or not generation.sets.count(number):
                continue
            among = generation.sets.find(GLOBAL_SET, "")
            operation = AddSet(generation.sets.list_ranks(number), among, f"add_process_set.{number}", number)
            handle = Handle(operation)
            generation.driver.ask(handle, at_once=True, is_awaited=True)
            generation.driver.await_response(handle)
            if handle.release is None:
                raise OperationFailedError(operation.title, generation.rank, generation.failure or "it was refused")

    def _carry_over(self, handle: Handle[Any], former: tuple[int, ...], done: Mapping[_Key, bytes]) -> None:
        """Complete, renew or fail a pending operation. The caller holds the lock.

        Args:
            handle: the operation's handle.
            former: the former ranks of its set.
            done: the sequencer's responses to the operations that the decision calls done, by key.
        """
        engine = self.engine
        self._indices.pop(handle, None)
        operation = handle.operation
        request = operation.request
        number = 0
        if isinstance(operation, CommitRound):
            number = operation.number
        response = done.get((former, number, "" if number else request.name))

        if response is not None and handle in self._reported:
            release, payload = decode_response(b"" if number else response, request, former)
            engine.in_flight.release(handle, release, (), payload, engine.current)
            if number:
                engine.steps.rounds[request.process_set] = number
                engine.steps.note_completed_step(request.process_set, former)
                engine.steps.note_step(request.process_set, is_stopping=response == STOPPING)
            engine.in_flight.forget(handle)
            return

        try:
            engine.in_flight.renew(handle, engine.renew(operation))
        except HorovodInternalError as error:
            engine.in_flight.refuse(handle, error)
