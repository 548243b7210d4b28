"""One generation in the sequencer: members ask, the rules decide, and the responses are sent.

The sequencer works in rounds: it reads all connections, and then one `settle` combines the payloads of all released
operations, and sends each member one message. So a burst of small operations costs few calls.

A member whose connection ends has left, or is lost. After an EXIT its exit code decides. Until that is known, nothing
is decided, and operations that need the member wait. The member's agent reports the code to the rendezvous. The
rendezvous then either reports the departure to the members, which send DEPARTED, or interrupts the generation. So no
guess and no time limit is needed.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from worker_runtime.coordination.ordering.ordering import IllegalRequestError, Ordering, PendingSummary
from worker_runtime.coordination.ordering.requests import (
    GLOBAL_SET,
    Failure,
    Kind,
    Refusal,
    Release,
    Response,
    Signature,
    Stopping,
)
from worker_runtime.coordination.sequencer.connection import WRITE, Connection, ConnectionEndedError
from worker_runtime.coordination.sequencer.member import MAX_PENDING, Member, ReleaseRange, make_frames
from worker_runtime.coordination.sequencer.orders import ActivationOrder
from worker_runtime.coordination.sequencer.payloads import FREE_BYTES, Entry, UnequalPayloadError, check_size, combine
from worker_runtime.coordination.sequencer.stalls import StallClock, StallSettings
from worker_runtime.coordination.sequencer.store import KeyStore
from worker_runtime.coordination.sequencer.waits import Wait, describe_waits, encode_waits
from worker_runtime.coordination.wire import (
    NUMBERS,
    Farewell,
    Frame,
    ProtocolError,
    decode_blocked,
    decode_number,
    decode_requests,
    decode_settings,
    encode_arrivals,
    encode_neutral,
    forward_waits,
)

_MAX_REASON_BYTES = 500
_ENDED = "ended without an error"  # with 0, or with 75 after a stop notice
_GOODBYES = (Frame.LEAVE, Frame.END, Frame.EXIT)


class Generation:
    """The members of one activation, from their proof to the end of their connections.

    Args:
        activation: the activation.
        settings: the settings of the former generation, until rank 0 sends its own.
        report: writes a line to the owner.

    store: the store in which the members form their process groups.
    """

    def __init__(self, activation: ActivationOrder, settings: StallSettings, report: Callable[[bytes], None]) -> None:
        self.activation = activation
        self._report = report
        self._settings = settings
        self._ordering = Ordering(activation.size)
        self._clock = StallClock(settings.limits)
        self._due: float | None = None  # the time of the next check for stalls; None after a failure
        self._released_at: dict[int, float] = {}  # the time of the last release, by process set
        self._reported: frozenset[tuple[int, str]] = frozenset()  # the operations that the owner knows to be waited for
        self._members: dict[int, Member] = {}
        self._came: set[int] = set()
        self._hows: dict[int, str] = {}  # by rank: how those have ended that may have departed, or are lost
        self._departed: set[int] = set()  # ranks whose processes have exited with 0
        self._signatures: dict[Signature, Signature] = {}
        self._responses: list[tuple[Response, list[Entry]]] = []  # with the answered requests, for `settle`
        self._failure = ""
        self._stopping: Stopping | None = None  # after a stop notice
        self._is_recorded = False  # rank 0 records a timeline
        self.store = KeyStore()

    def may_come(self, rank: int) -> bool:
        """Whether a connection of this rank is accepted; each rank may connect once."""
        return rank < self.activation.size and rank not in self._came

    def admit(self, connection: Connection, rank: int, proof: bytes) -> None:
        """Admit a rank after its proof, and send the sequencer's proof."""
        member = self._members[rank] = Member(rank, connection)
        self._came.add(rank)
        connection.watch(partial(self._serve, member))
        try:
            connection.send(proof)
            if self._stopping is not None:
                self._note([self._stopping])  # again, to all members; it is idempotent
            if self._failure:
                member.put(Frame.FAILURE, self._failure.encode())
                member.flush()
        except ConnectionEndedError as error:
            self._end(member, error)

    def settle(self) -> None:
        """Send the responses since the last call; a member that cannot receive them is lost."""
        while self._responses:
            responses, self._responses = self._responses, []
            try:
                ranks = self._put(responses)
            except UnequalPayloadError as error:  # no rank gets these responses, and all get the failure
                self._drop(error.rank, str(error))
                if not self._failure:  # the rank had left
                    self._note([Failure(f"rank {error.rank} was cut off: {error}")])
                self._responses = [(Failure(self._failure), [])]
                continue
            for rank in ranks:
                self._flush(rank)

    def stop(self) -> None:
        """Process a stop notice for the job: all later releases come after it, on all ranks."""
        if self._stopping is None:
            self._stopping = Stopping(self._ordering.next_index)
            self._note([self._stopping])

    def find_due(self) -> float | None:
        """The time of the next `check_stalls` on the monotonic clock; None for never."""
        return self._due

    def check_stalls(self, now: float) -> None:
        """Warn of operations that are pending for too long, or end the generation."""
        if self._due is None or now < self._due:
            return
        waits = [self._measure(each) for each in self._ordering.find_pending()]
        due = self._clock.find_due(waits)
        if due is not None and now >= due:
            self._report_stall(waits, now)
            due = self._clock.find_due(waits)
        self._due = None if self._failure else due

    def close(self) -> None:
        """Close all connections."""
        self._note_end_of_wait()
        for member in self._members.values():
            member.connection.close()
        self._members.clear()
        self.store.close()

    def _serve(self, member: Member, events: int) -> None:
        """Process a member's frames, and send unsent data."""
        try:
            if events & WRITE:
                member.connection.send_more()
            if events & ~WRITE:
                for kind, data, start, end in member.connection.receive():
                    self._take(member, kind, data, start, end)
        except (ProtocolError, IllegalRequestError) as error:
            self._drop(member.rank, f"it violated the protocol of the sequencer: {error}")
        except ConnectionEndedError as error:
            self._end(member, error)

    def _take(self, member: Member, kind: int, data: bytes, start: int, end: int) -> None:  # noqa: C901 - of each frame
        """Process one frame, whose body is `data[start:end]`; after a failure only farewells."""
        if member.has_left or member.farewell is not None:
            raise ProtocolError("a frame came after the farewell")
        if self._failure and kind not in _GOODBYES:
            return
        if kind == Frame.REQUESTS:
            self._ask(member, data, start, end)
        elif kind == Frame.SIGNATURE:
            member.learn_signature(memoryview(data)[start:end], self._signatures)
        elif kind == Frame.BLOCKED:
            self._block(member, *decode_blocked(memoryview(data)[start:end]))
        elif kind in {Frame.SETTINGS, Frame.RECORD}:
            self._set(member, kind, memoryview(data)[start:end])
        elif kind == Frame.WAITS:
            self._forward_waits(member, memoryview(data)[start:end])
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

    def _set(self, member: Member, kind: int, body: memoryview) -> None:
        """Use rank 0's settings from now on, also for pending requests; rank 0 prints warnings about wrong values."""
        if member.rank != 0:
            raise ProtocolError("settings came from another rank than 0")
        if kind == Frame.RECORD:
            self._is_recorded = bool(body and body[0])
            return
        for remark in self._settings.read(decode_settings(body)):
            member.put(Frame.STALL, remark.encode(errors="backslashreplace"))
        member.flush()
        self._clock = StallClock(self._settings.limits)
        if any(each.pending for each in self._members.values()):
            self._due = time.monotonic()

    def _block(self, member: Member, number: int, is_blocked: bool) -> None:  # noqa: FBT001 - the value of the member's message
        """Note that a member is blocked in a request, or no longer blocked."""
        key = member.find_pending(number)
        if not is_blocked:
            self._ordering.unblock(member.rank)
        elif key is not None:
            self._note(self._ordering.block(member.rank, *key))

    def _end(self, member: Member, error: ConnectionEndedError) -> None:
        """Process the end of a member's connection: it has left, is lost, or that is not known yet."""
        farewell = member.farewell or Farewell()
        if member.is_undecided and not farewell.reason and member.rank not in self._departed:
            self._members.pop(member.rank, None)
            self._hows[member.rank] = farewell.how
            member.connection.close()
            self._ordering.vanish(member.rank)
            return
        if member.farewell is not None or member.rank in self._departed:
            self._part(member, farewell)
        self._drop(member.rank, f"its connection to the sequencer {error}")

    def _depart(self, rank: int) -> None:
        """Note that a rank's process has exited with 0; its last frames may still be on the way."""
        if rank >= self.activation.size:
            raise ProtocolError(f"DEPARTED names rank {rank} of {self.activation.size}")
        self._departed.add(rank)
        if rank not in self._members:
            self._came.add(rank)
            self._note(self._ordering.leave(rank, _describe_departed(self._hows.get(rank, ""))))

    def _part(self, member: Member, farewell: Farewell) -> None:
        """Process that a member has left; its farewell may say why the others cannot continue."""
        if member.has_left:
            return
        member.has_left = True
        member.pending.clear()
        if self._failure:
            return
        if farewell.reason:
            self._note(self._ordering.lose(member.rank, f"was lost: {farewell.reason}"))
        else:
            how = _describe_departed(farewell.how) if member.rank in self._departed else farewell.how
            self._note(self._ordering.leave(member.rank, how))

    def _ask(self, member: Member, data: bytes, start: int, end: int) -> None:
        """Pass a member's requests to the rules. This runs for each operation of each rank, so it is written flat."""
        now = time.monotonic()
        rank, pending, number, ask = member.rank, member.pending, member.asked, self._ordering.ask
        find = member.requests.get
        for head, sizes, payload in decode_requests(data, start, end):
            request, key = find(head) or member.learn_request(head)
            if len(payload) > FREE_BYTES:
                check_size(len(self._ordering.find_members(request.process_set) or ()), len(payload))
            responses = ask(rank, request, sizes)
            pending[key] = rank, number, payload, now
            number = (number + 1) % NUMBERS
            if responses:
                self._note(responses)
        member.asked = number
        if len(pending) > MAX_PENDING:
            raise ProtocolError(f"more than {MAX_PENDING} requests are pending")
        if pending and self._due is None and (seconds := self._clock.limits.shortest) is not None:
            self._due = now + seconds

    def _note(self, responses: Sequence[Response]) -> None:
        """Queue responses for the next `settle`, with the requests that they answer, which are no longer pending."""
        members = self._members
        for response in responses:
            asked: list[Entry] = []
            ranks: Sequence[int] = ()
            key = GLOBAL_SET, ""
            if isinstance(response, Release):
                ranks, key = response.members, response.request[:2]
            elif isinstance(response, Refusal):
                ranks, key = response.ranks, (response.process_set, response.name)
            elif isinstance(response, Failure):
                self._failure = response.reason
                self._due = None  # what the members asked stays pending when they leave
            if key in self._reported or self._failure:
                self._note_end_of_wait()
            for rank in ranks:
                member = members.get(rank)
                if member is not None and key in member.pending:
                    asked.append(member.pending.pop(key))
            self._responses.append((response, asked))

    def _put(self, responses: Sequence[tuple[Response, list[Entry]]]) -> set[int]:
        """Queue each response for its members; return their ranks.

        Raises:
            UnequalPayloadError: a rank's payload cannot be combined. Nothing was queued.
        """
        touched: set[int] = set()
        released = [(response, asked) for response, asked in responses if isinstance(response, Release)]
        payloads = iter(combine(released))
        if released:
            now = self._clock.released_at = time.monotonic()
            self._released_at |= dict.fromkeys([response.request.process_set for response, _ in released], now)
            if self._is_recorded and 0 in self._members:
                self._members[0].put(Frame.ARRIVALS, self._encode_arrivals(released))
                touched.add(0)
        run: ReleaseRange | None = None
        for response, asked in responses:
            if isinstance(response, Release):
                payload = next(payloads)
                if run is None or not run.take(response, asked, payload):
                    self._put_run(run, touched)
                    run = ReleaseRange(response, asked, payload)
            else:
                self._put_run(run, touched)
                run = None
                for rank, kind, body in make_frames(response, asked, self._members):
                    if rank in self._members:
                        touched.add(rank)
                        self._members[rank].put(kind, body)
        self._put_run(run, touched)
        return touched

    def _forward_waits(self, member: Member, body: memoryview) -> None:
        if self._is_recorded and 0 in self._members:
            self._members[0].put(Frame.RANK_WAITS, forward_waits(member.rank, time.monotonic(), body))
            self._flush(0)

    def _encode_arrivals(self, released: Sequence[tuple[Release, list[Entry]]]) -> bytes:
        return b"".join(
            encode_arrivals(release, self._clock.released_at, ((rank, when) for rank, _, _, when in asked))
            for release, asked in released
        )

    def _put_run(self, run: ReleaseRange | None, touched: set[int]) -> None:
        if run is None:
            return
        members = self._members
        for rank, piece in run.encode():
            if rank in members:  # else it has left
                members[rank].releases.append(piece)
                touched.add(rank)
        for rank in run.first.joined:
            if rank in members:
                members[rank].put(Frame.NEUTRAL, encode_neutral(run.first))
                touched.add(rank)

    def _measure(self, pending: PendingSummary) -> Wait:
        """Since when a rank waits for this operation; for a join, which may last, since the last release of all."""
        key = pending.request.process_set, pending.request.name
        since = min(when for _, _, _, when in [self._members[rank].pending[key] for rank in pending.asked])
        if pending.request.signature.kind is Kind.JOIN:
            since = max(since, self._clock.released_at)
        return Wait(pending, since, max(since, self._released_at.get(key[0], 0.0)))

    def _report_stall(self, waits: Sequence[Wait], now: float) -> None:
        text = self._clock.explain_end(waits, now)
        if text is not None:
            self._note([Failure(text)])
            return
        if self._clock.take_hang(waits, now) and self.activation.reports:
            self._tell(waits, now, is_hang=True)
        if self._clock.take_warning(waits, now):
            self._tell(self._clock.choose_long(waits, now), now)

    def _tell(self, waits: Sequence[Wait], now: float, *, is_hang: bool = False) -> None:
        """Report these waits to the owner, or have a waiting rank print them."""
        blocked = self._ordering.find_blocked()
        if self.activation.reports:
            self._report(encode_waits(self.activation.generation, waits, blocked, now, is_hang=is_hang))
            self._reported = frozenset(each.key for each in waits)
            return
        rank = min(rank for each in waits for rank in each.pending.asked)
        self._members[rank].put(Frame.STALL, describe_waits(waits, blocked, now).encode())
        self._flush(rank)

    def _note_end_of_wait(self) -> None:
        if self._reported:
            self._reported = frozenset()
            self._report(encode_waits(self.activation.generation, [], [], 0.0))

    def _drop(self, rank: int, reason: str) -> None:
        """Close a member's connection; unless it has left, the generation fails."""
        if (member := self._members.pop(rank, None)) is None:
            return
        member.connection.close()
        if not self._failure:  # the rules ignore the loss of a rank that has left
            self._note(self._ordering.lose(rank, f"was cut off: {reason}"))  # its process may still run

    def _flush(self, rank: int) -> None:
        """Send a member's queued frames, if it is still connected."""
        if (member := self._members.get(rank)) is not None:
            try:
                member.flush()
            except ConnectionEndedError as error:
                self._end(member, error)


def _describe_departed(how: str) -> str:
    """How a rank has ended whose exit code is known to be good; `how`: in its own words."""
    return _ENDED if how in {"", "ended"} else how
