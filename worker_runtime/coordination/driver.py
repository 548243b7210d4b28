"""Drives the conversation of one rank with the sequencer: sends what was gathered, hears the answers, has them run.

One thread at a time drives. A caller who blocks drives himself, which is fastest: nothing is handed from thread to
thread. What was submitted and is not waited for yet is driven by a thread in the background (`background.py`).

Long because each way in which threads share the one connection is to be read beside the others.
"""

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue

from worker_runtime.coordination.background import Background
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import Answer, Ended, Neutral, Refused, StopNoticed, split
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.wire import (
    Farewell,
    Frame,
    decode_index,
    decode_neutral,
    decode_numbered,
    decode_releases,
    encode_blocked,
    encode_number,
)

_PATIENCE_SECONDS = 1.0  # of a thread that waits, until it says so
_WAIT_MILLISECONDS = 1000
_TRY_SECONDS = 0.1  # while another thread drives: whoever leaves waits so long at most
_END_SECONDS = 5.0  # for who drives to notice that the conversation is over

_LOG = logging.getLogger("hvd")


class Driver:
    """The conversation of one generation. `ask` may be called from any thread.

    Args:
        link: to the sequencer.
        list_members: tells a set's ranks.
        carry_out: what the sequencer answers, in whatever thread hears it.
        askers: the program's threads that have ever asked, by their identifiers.
        patience_seconds: of a thread that waits, until it says that this rank can do nothing else.
    """

    def __init__(
        self,
        link: Link,
        list_members: Callable[[int], tuple[int, ...]],
        carry_out: Callable[[Answer], None],
        askers: Collection[int] = (),
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._link = link
        self._list_members = list_members
        self._carry_out = carry_out
        self._askers = askers
        self._patience_seconds = patience_seconds
        self._pending: dict[int, Handle[object]] = {}
        # A signal's handler may call shutdown() while its thread sends or drives.
        # Their order: `_driving`, the `lock` of InFlight, `_sending`. Nothing is carried out under the last.
        self._sending = threading.RLock()  # what goes out, and the numbers of questions
        self._driving = threading.RLock()
        # Of those who wait while another drives. Not events: a signal's handler that raises may leave one's lock held.
        self._waiters: set[SimpleQueue[None]] = set()
        self._background: Background | None = None
        self._is_closed = False
        self._has_left = False

    def ask(self, handle: Handle[object], *, at_once: bool, is_awaited: bool) -> None:
        """Ask for an operation.

        Args:
            handle: of the operation.
            at_once: send the question now, and not with those that follow.
            is_awaited: somebody will call `await_answer` right away.
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
        """What was asked and is not answered."""
        return list(self._pending.values())

    def await_answer(self, handle: Handle[object]) -> bool:
        """Wait until an operation is released or refused, driving meanwhile; False where it will be neither."""
        began, is_told = time.monotonic(), False
        try:
            while not handle.is_answered and not self._is_closed:
                if self._driving.acquire(blocking=False):
                    self._drive_turn(self._patience_seconds)
                else:
                    self._flush()  # who drives may be listening already, and would send this question only afterwards
                    self._await_turn(handle, self._patience_seconds)
                has_waited = not handle.is_answered and time.monotonic() - began >= self._patience_seconds
                if has_waited and not is_told and not _may_another_thread_ask(self._askers):
                    is_told = self._tell_blocked(handle, is_blocked=True)
        except BaseException:  # a signal's handler has raised: the operation goes on, and somebody has to drive
            self._ring()
            if is_told:
                self._tell_blocked(handle, is_blocked=False)
            raise
        return handle.is_answered

    def tell_departed(self, rank: int) -> None:
        """A member's process has ended well: what needs it will not run. For any thread."""
        with self._sending:
            if self._is_closed:
                return
            self._link.queue.put(Frame.DEPARTED, encode_number(rank))
        self._flush()

    def progress(self) -> None:
        """Run what has been released, if there is something, without waiting."""
        if self._pending:
            self.listen()

    def listen(self) -> None:
        """Carry out what has come, without waiting: also that a rank was lost, when nothing is pending."""
        if not self._is_closed and self._driving.acquire(blocking=False):
            self._drive_turn(None)

    def await_end(self, limit_seconds: float) -> None:
        """Wait for the news that nothing will be answered any more; it need not come."""
        deadline = time.monotonic() + limit_seconds
        while not self._is_closed and (left := deadline - time.monotonic()) > 0:
            if self._driving.acquire(timeout=left):
                try:
                    if not self._is_closed:  # another thread has heard it, and nothing follows
                        self._hear(left)
                finally:
                    self._driving.release()
                    self._wake_waiters()

    def halt(self, reason: str, limit_seconds: float) -> None:
        """Have nothing more released to anybody, and carry out what was released before.

        Args:
            reason: the others are told.
            limit_seconds: how long to wait for the end of it.
        """
        with self._sending, contextlib.suppress(OSError):  # who has ended it already needs not be told
            if not self._is_closed:
                self._link.queue.put(Frame.HALT, reason.encode())
                self._link.flush()
        self.await_end(limit_seconds)

    def leave(self, find_farewell: Callable[[], Farewell] = Farewell, kind: Frame = Frame.LEAVE) -> None:
        """Say goodbye and end the connection and the thread; what is pending stays unanswered.

        Args:
            find_farewell: tells, at the last moment, what the others are told.
            kind: END or EXIT where the process ends, and the others shall hear of it only then: who has failed ends
                before them.
        """
        with self._sending:
            self._is_closed = True
        if self._background is not None:
            self._background.close()
        self.quit(find_farewell, kind)
        if kind is Frame.LEAVE:
            self._link.shut_down()  # wakes who still hears
        else:
            self._link.leave_to_process()
        # Who drives may be connecting a group whose other members do not come: the descriptor is freed with the link.
        if self._driving.acquire(timeout=_END_SECONDS):
            self._link.close()
            self._driving.release()
        self._pending.clear()

    def quit(self, find_farewell: Callable[[], Farewell], kind: Frame = Frame.LEAVE) -> None:
        """Say goodbye, unless that was done, and nothing any more; see `leave`, which has to follow."""
        with self._sending, contextlib.suppress(OSError):  # it may have gone before
            self._is_closed = True
            if not self._has_left:
                self._has_left = True
                self._link.queue.put(kind, find_farewell().encode())
                self._link.flush()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, and so is the thread."""
        self._is_closed = True
        self._link.close()
        if self._background is not None:
            self._background.abandon()
        self._pending.clear()

    def _drive_in_background(self, poller: select.poll) -> None:
        """Drive for those who do not wait, until nothing is pending. For the thread in the background.

        Args:
            poller: of the bell; it wakes up as well when more was asked.
        """
        try:
            self._drive_on(poller)
        except Exception as error:  # noqa: BLE001 - as in `_hear`
            self._end_with(error)

    def _drive_on(self, poller: select.poll) -> None:
        descriptor = self._link.fileno()
        poller.register(descriptor, select.POLLIN)
        try:
            while self._pending and not self._is_closed:
                self._flush()  # also while somebody listens who waits, and would send this only afterwards
                if not self._driving.acquire(timeout=_TRY_SECONDS):
                    continue
                try:
                    heard = set() if self._is_closed else {number for number, _ in poller.poll(_WAIT_MILLISECONDS)}
                    if descriptor in heard or self._link.has_received:
                        self._hear(wait_seconds=None)
                finally:
                    self._driving.release()
                self._wake_waiters()
                if heard - {descriptor}:
                    return
        finally:
            poller.unregister(descriptor)

    def _drive_turn(self, wait_seconds: float | None) -> None:
        """Send, and hear once; the caller holds `_driving`, which is released."""
        try:
            self._flush()
            self._hear(wait_seconds)
        finally:
            self._driving.release()
            self._wake_waiters()

    def _await_turn(self, handle: Handle[object], wait_seconds: float) -> None:
        """Wait while another thread drives: until the answer has come, or that one has stopped."""
        woken: SimpleQueue[None] = SimpleQueue()
        self._waiters.add(woken)  # before it is tried again: who stops driving now sees it
        try:
            if self._driving.acquire(blocking=False):
                self._driving.release()
            elif not handle.is_answered:
                with contextlib.suppress(Empty):
                    woken.get(timeout=wait_seconds)
        finally:
            self._waiters.discard(woken)

    def _wake_waiters(self) -> None:
        if self._waiters:
            for waiter in tuple(self._waiters):
                waiter.put(None)

    def _tell_blocked(self, handle: Handle[object], *, is_blocked: bool) -> bool:
        """Say that this rank waits for an answer and can do nothing else, or no longer; whether it is pending still."""
        with self._sending:
            number = next((number for number, pending in self._pending.items() if pending is handle), None)
            if number is None:
                return False
            self._link.queue.put(Frame.BLOCKED, encode_blocked(number, is_blocked=is_blocked))
        self._flush()
        return True

    def _ring(self) -> None:
        """Have what is pending driven though nobody waits for it."""
        with self._sending:  # one thread, and none once somebody leaves
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
            self._end(f"what was asked could not be sent ({error})")

    def _hear(self, wait_seconds: float | None) -> None:
        """Carry out the answers that have come, or come within the time."""
        try:
            frames = self._link.receive(wait_seconds)  # what a signal's handler raises here changes nothing
            try:
                for kind, body in frames:
                    self._obey(kind, body)
            except Exception as error:  # noqa: BLE001 - a fault of ours: it ends the job, and no thread in silence
                self._end_with(error)
            except BaseException as error:
                self._end(f"it was interrupted ({type(error).__name__}) while it carried out what was released")
                self._link.shut_down()  # tells the others
                raise
        except EOFError:
            self._end("the sequencer has ended")
        except OSError as error:
            self._end_broken(error)

    def _obey(self, kind: int, body: memoryview) -> None:
        carry_out = self._carry_out
        match kind:
            case Frame.RELEASES:
                for released in decode_releases(body, self._count_members):
                    handles = [self._pending.pop(number) for number in released.numbers]
                    for answer in split(released, handles, self._list_members):
                        carry_out(answer)
            case Frame.NEUTRAL:
                carry_out(Neutral(decode_neutral(body)))
            case Frame.REFUSAL | Frame.DEADLOCK:
                number, reason = decode_numbered(body)
                carry_out(Refused(self._pending.pop(number), reason, is_deadlock=kind == Frame.DEADLOCK))
            case Frame.FAILURE:
                self._end(str(body, "utf-8"))
            case Frame.STALL:
                _LOG.warning(str(body, "utf-8"))
            case Frame.STOPPING:
                carry_out(StopNoticed(decode_index(body)))
            case _:
                self._end(f"the sequencer has sent a frame of type {kind}, which this version does not know")

    def _count_members(self, number: int) -> int:
        return len(self._list_members(self._pending[number].operation.question.process_set))

    def _end_broken(self, error: OSError) -> None:
        how = error.strerror or error
        self._end(f"rank {self._link.rank} was cut off: its connection to the sequencer broke: {how}")

    def _end_with(self, error: Exception) -> None:
        """A fault of the runtime: all ranks hear the same sentence."""
        reason = f"rank {self._link.rank} has failed: {error}"
        with self._sending, contextlib.suppress(Exception):  # this may be what fails: the first error says why
            self._link.queue.put(Frame.HALT, reason.encode(errors="backslashreplace"))
            self._link.flush()
        self._end(reason, error)

    def _end(self, reason: str, fault: Exception | None = None) -> None:
        """Nothing will be answered any more."""
        if not self._is_closed:
            self._is_closed = True
            self._carry_out(Ended(reason, fault))


def _may_another_thread_ask(askers: Collection[int]) -> bool:
    """Whether the program has another thread; daemons, such as a DataLoader's, count if they have ever asked."""
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    return any(not thread.daemon or thread.ident in askers for thread in others)
