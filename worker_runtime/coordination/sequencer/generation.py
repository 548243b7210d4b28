"""One generation as the sequencer serves it: its members ask, the rules decide, all are answered.

What comes is taken in rounds: everything that is there to be read, connection by connection, and then one `settle`,
which combines the payloads of all that was released and sends each member one message. So a burst costs few calls,
however many small operations it holds.

A member that ends may have left, or be lost. Where its goodbye leaves that to its exit code (EXIT), the end of its
connection decides nothing, and what needs it waits. Its agent reports the code to the rendezvous. The rendezvous either
reports to the members that it has departed, and they report it here; or it interrupts the generation. So nothing is
guessed or timed.

Long because what comes from a member, and what its end means to the others, are to be read side by side.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from worker_runtime.coordination.ordering.ordering import IllegalQuestionError, Ordering, Pending
from worker_runtime.coordination.ordering.questions import Answer, Failure, Kind, Refusal, Release, Signature, Stopping
from worker_runtime.coordination.sequencer.connection import WRITE, Connection, ConnectionEndedError
from worker_runtime.coordination.sequencer.member import MAX_PENDING, NUMBERS, Member, ReleaseRange, make_frames
from worker_runtime.coordination.sequencer.orders import Activation
from worker_runtime.coordination.sequencer.payloads import FREE_BYTES, Entry, UnequalPayloadError, check_size, combine
from worker_runtime.coordination.sequencer.stalls import StallClock, StallSettings, describe_stall, describe_stall_limit
from worker_runtime.coordination.sequencer.store import KeyStore
from worker_runtime.coordination.wire import (
    Farewell,
    Frame,
    ProtocolError,
    decode_blocked,
    decode_number,
    decode_questions,
    decode_settings,
    encode_neutral,
)

_MAX_REASON_BYTES = 500
_ENDED_WELL = "ended well"  # with 0, or with 75 after a stop notice
_GOODBYES = (Frame.LEAVE, Frame.END, Frame.EXIT)


class Generation:
    """The members of one activation, from their proof to the end of their connections.

    Args:
        activation: of the owner.
        settings: those of the generation before, until rank 0 hands over its own.

    store: through which the members' process groups form.
    """

    def __init__(self, activation: Activation, settings: StallSettings) -> None:
        self.activation = activation
        self._settings = settings
        self._ordering = Ordering(activation.size)
        self._clock = StallClock(settings.limits)
        self._due: float | None = None  # when to look for stalls
        self._released_at = 0.0
        self._members: dict[int, Member] = {}
        self._came: set[int] = set()
        self._departed: set[int] = set()  # those of whom is known that their processes have ended well
        self._signatures: dict[Signature, Signature] = {}
        self._answers: list[tuple[Answer, list[Entry]]] = []  # with the questions that they answer, for `settle`
        self._failure = ""
        self._stopping: Stopping | None = None  # once a stop notice has come
        self.store = KeyStore()

    def may_come(self, rank: int) -> bool:
        """Whether a connection may prove to be of this rank; each comes once."""
        return rank < self.activation.size and rank not in self._came

    def admit(self, connection: Connection, rank: int, proof: bytes) -> None:
        """Take a rank in that has proved itself; `proof` is the sequencer's own, which it waits for."""
        member = self._members[rank] = Member(rank, connection)
        self._came.add(rank)
        connection.watch(partial(self._serve, member))
        try:
            connection.send(proof)
            if self._stopping is not None:
                self._note([self._stopping])  # again, to all: one that knows it learns nothing new
            if self._failure:
                member.put(Frame.FAILURE, self._failure.encode())
                member.flush()
        except ConnectionEndedError as error:
            self._end(member, error)

    def settle(self) -> None:
        """Send what was decided since the last time, and that a member is lost where it does not take it."""
        while self._answers:
            answers, self._answers = self._answers, []
            try:
                ranks = self._put(answers)
            except UnequalPayloadError as error:  # no rank gets any of these answers, and all get the failure
                self._drop(error.rank, str(error))
                self._failure = self._failure or f"rank {error.rank} was cut off: {error}"  # where it had said goodbye
                self._answers = [(Failure(self._failure), [])]
                continue
            for rank in ranks:
                self._flush(rank)

    def stop(self) -> None:
        """A stop notice has come for the job: what is released from now on comes after it, on all ranks."""
        if self._stopping is None:
            self._stopping = Stopping(self._ordering.next_index)
            self._note([self._stopping])

    def find_due(self) -> float | None:
        """When `check_stalls` has something to do, by the monotonic clock; None for never."""
        return self._due

    def check_stalls(self, now: float) -> None:
        """Warn of what has been pending for too long, or end the generation over it."""
        if self._due is None or now < self._due:
            return
        waiting = [(each, self._find_since(each)) for each in self._ordering.find_pending()]
        joins = [since for each, since in waiting if each.question.signature.kind is Kind.JOIN]
        others = [since for each, since in waiting if each.question.signature.kind is not Kind.JOIN]
        oldest, join = min(others, default=None), min(joins, default=None)
        due = self._clock.find_due(oldest, join)
        if due is not None and now >= due:
            self._report_stall(waiting, now, is_over=self._clock.is_over(oldest, now))
            due = self._clock.find_due(oldest, join)
        self._due = None if self._failure else due

    def close(self) -> None:
        """End all connections."""
        for member in self._members.values():
            member.connection.close()
        self._members.clear()
        self.store.close()

    def _serve(self, member: Member, events: int) -> None:
        """Take what a member has sent, and send it more of what it has not taken yet."""
        try:
            if events & WRITE:
                member.connection.send_more()
            if events & ~WRITE:
                for kind, data, start, end in member.connection.receive():
                    self._take(member, kind, data, start, end)
        except (ProtocolError, IllegalQuestionError) as error:
            self._drop(member.rank, f"it broke the rules of the sequencer: {error}")
        except ConnectionEndedError as error:
            self._end(member, error)

    def _take(self, member: Member, kind: int, data: bytes, start: int, end: int) -> None:
        """Follow one frame, whose body is `data[start:end]`; after a failure, only goodbyes."""
        if member.has_left or member.farewell is not None:
            raise ProtocolError("something was sent after goodbye")
        if self._failure and kind not in _GOODBYES:
            return
        if kind == Frame.ASK:
            self._ask(member, data, start, end)
        elif kind == Frame.SIGNATURE:
            member.learn_signature(memoryview(data)[start:end], self._signatures)
        elif kind == Frame.BLOCKED:
            self._block(member, *decode_blocked(memoryview(data)[start:end]))
        elif kind == Frame.SETTINGS:
            self._set(member, decode_settings(memoryview(data)[start:end]))
        elif kind == Frame.HALT:
            self._note([Failure(data[start : min(end, start + _MAX_REASON_BYTES)].decode(errors="replace"))])
        elif kind in _GOODBYES:
            self._take_goodbye(member, kind, data[start : min(end, start + _MAX_REASON_BYTES)])
        elif kind == Frame.DEPARTED:
            self._depart(decode_number(memoryview(data)[start:end]))
        else:
            raise ProtocolError(f"a frame of type {kind} came")

    def _take_goodbye(self, member: Member, kind: int, body: bytes) -> None:
        member.farewell = Farewell.decode(body)
        member.is_undecided = kind == Frame.EXIT
        if kind == Frame.LEAVE:
            self._part(member, member.farewell)

    def _set(self, member: Member, environment: Mapping[str, str]) -> None:
        """Follow rank 0's settings from now on, also for what is pending; rank 0 prints what cannot be followed."""
        if member.rank != 0:
            raise ProtocolError("settings came, which are rank 0's")
        for remark in self._settings.read(environment):
            member.put(Frame.STALL, remark.encode(errors="backslashreplace"))
        member.flush()
        self._clock = StallClock(self._settings.limits)
        if any(each.pending for each in self._members.values()):
            self._due = time.monotonic()

    def _block(self, member: Member, number: int, is_blocked: bool) -> None:  # noqa: FBT001 - as it came
        """Note that a member waits for the answer to a question, and does nothing else, or no longer."""
        key = member.find_pending(number)
        if not is_blocked:
            self._ordering.unblock(member.rank)
        elif key is not None:
            self._note(self._ordering.block(member.rank, *key))

    def _end(self, member: Member, error: ConnectionEndedError) -> None:
        """A member's connection has ended: it has left, or is lost, or which of the two is not known yet."""
        farewell = member.farewell or Farewell()
        if member.is_undecided and not farewell.reason and member.rank not in self._departed:
            self._members.pop(member.rank, None)
            member.connection.close()
            self._ordering.vanish(member.rank)
            return
        if member.farewell is not None or member.rank in self._departed:
            self._part(member, farewell)
        self._drop(member.rank, f"its connection to the sequencer {error}")

    def _depart(self, rank: int) -> None:
        """A rank's process has ended well; what it has sent before may still be on its way."""
        if rank >= self.activation.size:
            raise ProtocolError(f"rank {rank} is said to have departed, of {self.activation.size}")
        self._departed.add(rank)
        if rank not in self._members:
            self._came.add(rank)
            self._note(self._ordering.leave(rank, _ENDED_WELL))

    def _part(self, member: Member, farewell: Farewell) -> None:
        """Let a member go; its farewell may say why the others cannot continue."""
        if member.has_left:
            return
        member.has_left = True
        member.pending.clear()
        if self._failure:
            return
        if farewell.reason:
            self._note(self._ordering.lose(member.rank, f"was lost: {farewell.reason}"))
        else:
            how = _ENDED_WELL if member.rank in self._departed else farewell.how
            self._note(self._ordering.leave(member.rank, how))

    def _ask(self, member: Member, data: bytes, start: int, end: int) -> None:
        """Pass a member's questions to the rules. Runs for each small operation of each rank, so it is written flat."""
        now = time.monotonic()
        rank, pending, number, ask = member.rank, member.pending, member.asked, self._ordering.ask
        find = member.questions.get
        for head, sizes, payload in decode_questions(data, start, end):
            question, key = find(head) or member.learn_question(head)
            if len(payload) > FREE_BYTES:
                check_size(len(self._ordering.find_members(question.process_set) or ()), len(payload))
            answers = ask(rank, question, sizes)
            pending[key] = rank, number, payload, now
            number = (number + 1) % NUMBERS
            if answers:
                self._note(answers)
        member.asked = number
        if len(pending) > MAX_PENDING:
            raise ProtocolError(f"more than {MAX_PENDING} questions are pending")
        if pending and self._due is None:
            self._due = self._clock.find_due(now)

    def _note(self, answers: Sequence[Answer]) -> None:
        """Have answers sent by the next `settle`, with the questions that they answer, which are pending no more."""
        for answer in answers:
            asked: list[Entry] = []
            if isinstance(answer, Failure):
                self._failure = answer.reason
            elif isinstance(answer, Release | Refusal):
                if isinstance(answer, Release):
                    ranks, key = answer.members, (answer.question.process_set, answer.question.name)
                else:
                    ranks, key = answer.ranks, (answer.process_set, answer.name)
                for rank in ranks:
                    member = self._members.get(rank)
                    if member is not None and key in member.pending:
                        asked.append(member.pending.pop(key))
            self._answers.append((answer, asked))

    def _put(self, answers: Sequence[tuple[Answer, list[Entry]]]) -> set[int]:
        """Have each answer ready for each member that it concerns; returns their ranks.

        Raises:
            UnequalPayloadError: a rank's payload cannot be combined; nothing is ready then.
        """
        touched: set[int] = set()
        released = [(answer, asked) for answer, asked in answers if isinstance(answer, Release)]
        payloads = iter(combine(released))
        if released:
            self._released_at = time.monotonic()
        run: ReleaseRange | None = None
        for answer, asked in answers:
            if isinstance(answer, Release):
                payload = next(payloads)
                if run is None or not run.take(answer, asked, payload):
                    self._put_run(run, touched)
                    run = ReleaseRange(answer, asked, payload)
            else:
                self._put_run(run, touched)
                run = None
                for rank, kind, body in make_frames(answer, asked, self._members):
                    if rank in self._members:
                        touched.add(rank)
                        self._members[rank].put(kind, body)
        self._put_run(run, touched)
        return touched

    def _put_run(self, run: ReleaseRange | None, touched: set[int]) -> None:
        if run is None:
            return
        members = self._members
        for rank, piece in run.encode():
            if rank in members:  # else it has said goodbye meanwhile
                members[rank].releases.append(piece)
                touched.add(rank)
        for rank in run.first.joined:
            if rank in members:
                members[rank].put(Frame.NEUTRAL, encode_neutral(run.first))
                touched.add(rank)

    def _find_since(self, pending: Pending) -> float:
        """Since when a rank waits for this; for a join, since the last release."""
        key = pending.question.process_set, pending.question.name
        entries = [self._members[rank].pending[key] for rank in pending.asked]
        since = min(when for _, _, _, when in entries)
        return max(since, self._released_at) if pending.question.signature.kind is Kind.JOIN else since

    def _report_stall(self, waiting: Sequence[tuple[Pending, float]], now: float, *, is_over: bool) -> None:
        limits = self._clock.limits
        if is_over:
            measured = [
                (each, 0.0 if each.question.signature.kind is Kind.JOIN else now - since) for each, since in waiting
            ]
            text = describe_stall_limit(measured, limits.shutdown_seconds or 0.0)
            if text is not None:
                self._note([Failure(text)])
                return
        self._clock.note_warning(now)
        text = describe_stall([(each, now - since) for each, since in waiting], limits.warning_seconds or 0.0)
        rank = min(rank for each, _ in waiting for rank in each.asked)
        if text is not None:
            self._members[rank].put(Frame.STALL, text.encode())
            self._flush(rank)

    def _drop(self, rank: int, reason: str) -> None:
        """End a member's connection; unless it has said goodbye, the generation ends with it."""
        member = self._members.pop(rank, None)
        if member is None:
            return
        member.connection.close()
        if not self._failure:  # for one that has left, the rules know that it is no loss
            self._note(self._ordering.lose(rank, f"was cut off: {reason}"))  # its process may be well

    def _flush(self, rank: int) -> None:
        """Send what is ready for a rank, if it is still there."""
        member = self._members.get(rank)
        if member is not None:
            try:
                member.flush()
            except ConnectionEndedError as error:
                self._end(member, error)
