"""The driver of the conversation with the sequencer: it sends requests, receives responses, and carries them out.

One thread at a time drives. A thread that waits for an operation drives itself, which is the fastest, without a switch
of threads. A background thread (`background.py`) drives for operations that no thread waits for.
"""

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from worker_runtime.coordination.background import Background
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import (
    Arrived,
    Ended,
    Neutral,
    ReceivedResponse,
    Refused,
    StopNoticed,
    Waited,
    split,
)
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.wire import (
    Farewell,
    Frame,
    RankSpan,
    decode_arrivals,
    decode_index,
    decode_neutral,
    decode_numbered,
    decode_rank_waits,
    decode_releases,
    encode_blocked,
    encode_number,
    encode_waits,
)

_PATIENCE_SECONDS = 1.0  # a thread that has waited longer reports that it is blocked
_WAIT_MILLISECONDS = 1000
_TRY_SECONDS = 0.1  # between two tries to drive, while another thread drives
_END_SECONDS = 5.0  # for the driving thread to notice the end of the conversation

_LOG = logging.getLogger("hvd")


class Driver:
    """The conversation of one generation. Any thread may call `ask`.

    Args:
        link: the connection to the sequencer.
        list_members: returns the ranks of a set.
        carry_out: processes a response, in the thread that drives.
        askers: the identifiers of the program's threads that have submitted operations.
        patience_seconds: the time after which a waiting thread reports that this rank is blocked.
    """

    def __init__(
        self,
        link: Link,
        list_members: Callable[[int], tuple[int, ...]],
        carry_out: Callable[[ReceivedResponse], None],
        askers: Collection[int] = (),
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._link = link
        self._list_members = list_members
        self._carry_out = carry_out
        self._askers = askers
        self._patience_seconds = patience_seconds
        self._pending: dict[int, Handle[object]] = {}
        # Reentrant: a signal's handler may call shutdown() while its thread sends or drives.
        # The order of locks: `_driving`, the `lock` of InFlight, `_sending`. Under `_sending` nothing is carried out.
        self._sending = threading.RLock()  # guards the send queue and the numbers of requests
        self._driving = threading.RLock()
        # The threads that wait while another drives. Not Events, whose lock a raising signal handler could leave held.
        self._waiters: set[SimpleQueue[None]] = set()
        self._background: Background | None = None
        self._is_closed = False
        self._has_left = False

    def ask(self, handle: Handle[object], *, at_once: bool, is_awaited: bool) -> None:
        """Submit an operation.

        Args:
            handle: the operation's handle.
            at_once: send the request immediately, and not together with the next ones.
            is_awaited: the caller calls `await_response` next, so that the background thread need not wake.
        """
        queue = self._link.queue
        with self._sending:
            self._pending[queue.ask(handle.operation)] = handle
        if at_once or queue.is_full:
            self._flush()
        if not is_awaited and (self._background is None or not self._background.is_rung):
            self._ring()

    @property
    def pending(self) -> list[Handle[object]]:
        """The handles that are not answered."""
        return list(self._pending.values())

    def await_response(self, handle: Handle[object]) -> bool:
        """Wait until an operation is released or refused, and drive meanwhile; return False if neither will happen."""
        began, is_reported = time.monotonic(), False
        try:
            while not handle.is_answered and not self._is_closed:
                if not self._drive(partial(self._exchange, self._patience_seconds)):
                    self._flush()  # the driving thread may be receiving, and would send this request only afterwards
                    self._await_turn(handle, self._patience_seconds)
                has_waited = not handle.is_answered and time.monotonic() - began >= self._patience_seconds
                if has_waited and not is_reported and not _may_another_thread_ask(self._askers):
                    is_reported = self._report_blocked(handle, is_blocked=True)
        except BaseException:  # a signal's handler has raised: the background thread drives for the operation
            self._ring()
            if is_reported:
                self._report_blocked(handle, is_blocked=False)
            raise
        return handle.is_answered

    def report_departed(self, rank: int) -> None:
        """Report to the sequencer that a member's process has exited with 0. For any thread."""
        with self._sending:
            if self._is_closed:
                return
            self._link.queue.put(Frame.DEPARTED, encode_number(rank))
        self._flush()

    def record(self, *, is_on: bool) -> None:
        """Ask the sequencer for the times of all ranks' requests, or for no more; for rank 0."""
        with self._sending:
            if self._is_closed:
                return
            self._link.queue.put(Frame.RECORD, bytes([is_on]))
        self._flush()

    def send_waits(self, waits: Sequence[RankSpan]) -> None:
        """Send rank 0 what this rank's time was spent on; see `wire.encode_waits`. For any thread."""
        with self._sending:
            if self._is_closed:
                return
            self._link.queue.put(Frame.WAITS, encode_waits(time.monotonic(), waits))
        self._flush()

    def progress(self) -> None:
        """Carry out received responses without waiting, if an operation is pending."""
        if self._pending:
            self.listen()

    def listen(self) -> None:
        """Carry out received responses without waiting, also the loss of a rank when no operation is pending."""
        if not self._is_closed:
            self._drive(partial(self._exchange, None))

    def await_end(self, limit_seconds: float) -> None:
        """Wait for the end of the conversation, up to a limit."""
        deadline = time.monotonic() + limit_seconds
        while not self._is_closed and (left := deadline - time.monotonic()) > 0:
            self._drive(partial(self._receive, left), left)

    def halt(self, reason: str, limit_seconds: float) -> None:
        """Make the sequencer release nothing more to any rank, and carry out earlier releases.

        Args:
            reason: the reason, for all ranks.
            limit_seconds: how long to wait for the end of the conversation.
        """
        with self._sending, contextlib.suppress(OSError):  # the sequencer may have ended already
            if not self._is_closed:
                self._link.queue.put(Frame.HALT, reason.encode())
                self._link.flush()
        self.await_end(limit_seconds)

    def leave(self, find_farewell: Callable[[], Farewell] = Farewell, kind: Frame = Frame.LEAVE) -> None:
        """Send the farewell, and close the connection and the background thread. Pending operations stay unanswered.

        Args:
            find_farewell: returns the farewell; called at the last moment.
            kind: END or EXIT if the process ends; the other ranks then learn of it at the end of the process, so that
                a failed rank exits before them.
        """
        with self._sending:
            self._is_closed = True
        if self._background is not None:
            self._background.close()
        self.quit(find_farewell, kind)
        if kind is Frame.LEAVE:
            self._link.shut_down()  # wakes a receiving thread
        else:
            self._link.leave_to_process()
        # The driving thread may be connecting a group without its other members: then the link is closed when freed.
        self._drive(self._link.close, _END_SECONDS)
        self._pending.clear()

    def quit(self, find_farewell: Callable[[], Farewell], kind: Frame = Frame.LEAVE) -> None:
        """Send the farewell, once; see `leave`, which must follow."""
        with self._sending, contextlib.suppress(OSError):  # the sequencer may have ended already
            self._is_closed = True
            if not self._has_left:
                self._has_left = True
                self._link.queue.put(kind, find_farewell().encode())
                self._link.flush()

    def abandon(self) -> None:
        """Abandon the conversation in a forked child: connection and thread belong to the parent."""
        self._is_closed = True
        self._link.close()
        if self._background is not None:
            self._background.abandon()
        self._pending.clear()

    def _drive_in_background(self, poller: select.poll) -> None:
        """Drive until no operation is pending or the bell rings; for the background thread.

        Args:
            poller: a poller of the bell, which rings when more operations are submitted.
        """
        try:
            self._drive_on(poller)
        except Exception as error:  # noqa: BLE001 - a bug: it ends the job, instead of a thread in silence
            self._end_with(error)

    def _drive_on(self, poller: select.poll) -> None:
        descriptor = self._link.fileno()
        poller.register(descriptor, select.POLLIN)
        try:
            while self._pending and not self._is_closed:
                self._flush()  # also while another thread receives, which would send this only afterwards
                ready: list[int] = []
                self._drive(partial(self._poll, poller, ready), _TRY_SECONDS)
                if set(ready) - {descriptor}:
                    return
        finally:
            poller.unregister(descriptor)

    def _drive(self, turn: Callable[[], None], wait_seconds: float = 0.0) -> bool:
        """Drive for one turn, if no other thread drives for so long; return whether it did.

        A raising signal handler does not leave the lock held: Python calls handlers after a call, but not between the
        one call that acquires the lock and stores the result, and the `try` around it.
        """
        acquired: list[bool] = []
        try:
            acquired.extend(map(self._driving.acquire, (True,), (wait_seconds,)))
            if acquired[0]:
                turn()
            return acquired[0]
        finally:
            if True in acquired:
                self._driving.release()
                self._wake_waiters()

    def _poll(self, poller: select.poll, ready: list[int]) -> None:
        """Wait for a response or for the bell, and receive a response; `ready` takes the ready descriptors."""
        if self._is_closed:
            return  # the connection may be closed
        ready += [number for number, _ in poller.poll(_WAIT_MILLISECONDS)]
        if self._link.fileno() in ready or self._link.has_received:
            self._receive(wait_seconds=None)

    def _exchange(self, wait_seconds: float | None) -> None:
        """Send, and receive once."""
        self._flush()
        self._receive(wait_seconds)

    def _await_turn(self, handle: Handle[object], wait_seconds: float) -> None:
        """Wait while another thread drives, until it stops driving or wakes this thread."""
        woken: SimpleQueue[None] = SimpleQueue()
        self._waiters.add(woken)  # before the next try, so that a thread that stops driving now wakes this one
        try:
            if not self._drive(lambda: None) and not handle.is_answered:
                with contextlib.suppress(Empty):  # the caller looks again
                    woken.get(timeout=wait_seconds)
        finally:
            self._waiters.discard(woken)

    def _wake_waiters(self) -> None:
        if self._waiters:
            for waiter in tuple(self._waiters):
                waiter.put(None)

    def _report_blocked(self, handle: Handle[object], *, is_blocked: bool) -> bool:
        """Report that this rank is blocked in an operation, or no longer; return whether it is still pending."""
        with self._sending:
            number = next((number for number, pending in self._pending.items() if pending is handle), None)
            if number is None:
                return False
            self._link.queue.put(Frame.BLOCKED, encode_blocked(number, is_blocked=is_blocked))
        self._flush()
        return True

    def _ring(self) -> None:
        """Start or wake the background thread."""
        with self._sending:  # so that there is one thread, and none after `leave`
            if not self._is_closed:
                if self._background is None:
                    self._background = Background(self._drive_in_background, lambda: self._link.queue.asked)
                self._background.ring()

    def _flush(self) -> None:
        try:
            with self._sending:
                self._link.flush()
        except OSError as error:
            self._end_broken(error)
        except RuntimeError as error:
            self._end(f"operations could not be sent ({error})")

    def _receive(self, wait_seconds: float | None) -> None:
        """Receive frames, up to a time, and carry out their responses."""
        if self._is_closed:
            return  # another thread has received the end

        try:
            frames = self._link.receive(wait_seconds)  # an exception of a signal's handler here changes nothing
            try:
                for kind, body in frames:
                    self._handle_frame(kind, body)
            except Exception as error:  # noqa: BLE001 - a bug: it ends the job, instead of a thread in silence
                self._end_with(error)
            except BaseException as error:
                self._end(f"it was interrupted ({type(error).__name__}) while it carried out released operations")
                self._link.shut_down()  # so that the other ranks notice
                raise
        except EOFError:
            self._end("the sequencer has ended")
        except OSError as error:
            self._end_broken(error)

    def _handle_frame(self, kind: int, body: memoryview) -> None:  # noqa: C901 - a case for each frame
        carry_out = self._carry_out
        match kind:
            case Frame.RELEASES:
                for released in decode_releases(body, self._count_members):
                    handles = [self._pending.pop(number) for number in released.numbers]
                    for response in split(released, handles, self._list_members):
                        carry_out(response)
            case Frame.NEUTRAL:
                carry_out(Neutral(decode_neutral(body)))
            case Frame.REFUSAL | Frame.DEADLOCK:
                number, reason = decode_numbered(body)
                carry_out(Refused(self._pending.pop(number), reason, is_deadlock=kind == Frame.DEADLOCK))
            case Frame.FAILURE:
                self._end(str(body, "utf-8"))
            case Frame.STALL:
                _LOG.warning(str(body, "utf-8"))
            case Frame.ARRIVALS:
                carry_out(Arrived(list(decode_arrivals(body))))
            case Frame.RANK_WAITS:
                carry_out(Waited(*decode_rank_waits(body)))
            case Frame.STOPPING:
                carry_out(StopNoticed(decode_index(body)))
            case _:
                self._end(f"the sequencer sent a frame of the unknown type {kind}")

    def _count_members(self, number: int) -> int:
        return len(self._list_members(self._pending[number].operation.request.process_set))

    def _end_broken(self, error: OSError) -> None:
        how = error.strerror or error
        self._end(f"rank {self._link.rank} was cut off: its connection to the sequencer broke: {how}")

    def _end_with(self, error: Exception) -> None:
        """End the conversation after a bug of the runtime, with the same message on all ranks."""
        reason = f"rank {self._link.rank} has failed: {error}"
        with self._sending, contextlib.suppress(Exception):  # this may fail too: the first error tells the reason
            self._link.queue.put(Frame.HALT, reason.encode(errors="backslashreplace"))
            self._link.flush()
        self._end(reason, error)

    def _end(self, reason: str, fault: Exception | None = None) -> None:
        """End the conversation: no further operation is answered."""
        if not self._is_closed:
            self._is_closed = True
            self._carry_out(Ended(reason, fault))


def _may_another_thread_ask(askers: Collection[int]) -> bool:
    """Whether another thread may submit operations. Daemon threads count only if they have submitted some before."""
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    return any(not thread.daemon or thread.ident in askers for thread in others)
