"""A thread that waits for an answer and does not get it: what it tells the sequencer, and what it does meanwhile."""

import signal
import threading
import time
from collections.abc import Collection
from typing import NamedTuple, Protocol

from worker_runtime.coordination.accord import Accord
from worker_runtime.coordination.wire import Frame, encode_blocked, encode_number, encode_numbered
from worker_runtime.engine.handles import Handle
from worker_runtime.membership.stop_notice import asks_for_nothing

PATIENCE_SECONDS = 0.02  # until something is told at all

# By these others call a program at any time. Handlers of further signals (a child's end, a request to end) ask for no
# operations, and that of a timer only while one runs.
_CALLS = (signal.SIGIO, signal.SIGUSR1, signal.SIGUSR2, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1))


class Patience(NamedTuple):
    """When a rank whose threads wait says that it can do nothing else.

    seconds: after so long in one operation.
    heeds_signals: not while a signal's handler may ask for something.
    """

    seconds: float = 1.0
    heeds_signals: bool = True


USUAL = Patience()


class Speaker(Protocol):
    """Who has a word with the sequencer."""

    @property
    def askers(self) -> Collection[int]:
        """The threads that have ever asked."""

    def speak_of(self, handle: Handle[object], kind: Frame, *, is_blocked: bool = False, reason: str = "") -> bool:
        """Tell something of a question; whether it is pending still."""


class Wait:
    """One wait, after its first moments.

    Args:
        speaker: through whom to tell of it.
        accord: has those who may help.
        handle: what is waited for.
        began: when, by the monotonic clock.
        patience: until the rank is blocked.

    listens_seconds: how long to listen before it is looked at again.
    """

    def __init__(
        self, speaker: Speaker, accord: Accord, handle: Handle[object], began: float, patience: Patience = USUAL
    ) -> None:
        self._speaker = speaker
        self._accord = accord
        self._handle = handle
        self._began = began
        self._patience = patience
        self._is_idle = False
        self._is_blocked = False
        self.listens_seconds = PATIENCE_SECONDS
        accord.begin_wait()

    def go_on(self) -> None:
        """Nothing has come: help, and tell what there is to tell after so long."""
        waited = time.monotonic() - self._began
        if self._accord.is_wanted:
            self._accord.help()
        if not self._is_idle and waited > PATIENCE_SECONDS and not self._may_asker_ask():
            self._is_idle = self._speaker.speak_of(self._handle, Frame.IDLE)
        if not self._is_blocked and waited > self._patience.seconds and not self._may_program_ask():
            self._is_blocked = self._speaker.speak_of(self._handle, Frame.BLOCKED, is_blocked=True)
        is_soon = waited <= PATIENCE_SECONDS or self._accord.is_wanted
        self.listens_seconds = PATIENCE_SECONDS if is_soon else self._patience.seconds

    def end(self) -> None:
        """The answer has come, or the thread was interrupted."""
        self._accord.end_wait()
        if (self._is_idle or self._is_blocked) and not self._handle.is_answered:
            self._speaker.speak_of(self._handle, Frame.BLOCKED, is_blocked=False)

    def _may_program_ask(self) -> bool:
        """Whether something of the program may ask for another operation though this thread waits."""
        return self._may_thread_ask() or (self._patience.heeds_signals and may_signal_ask())

    def _may_asker_ask(self) -> bool:
        """Whether another thread lives that has asked before."""
        return any(thread.ident in self._speaker.askers for thread in _list_others())

    def _may_thread_ask(self) -> bool:
        """Whether a thread of the program lives that may ask though this one waits; daemons count if they ever have."""
        return any(not thread.daemon or thread.ident in self._speaker.askers for thread in _list_others())


def may_signal_ask() -> bool:
    """Whether a handler of the program's may run though its threads wait: of a timer, or of somebody else's signal."""
    is_timed = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    handlers = map(signal.getsignal, (signal.SIGALRM, *_CALLS) if is_timed else _CALLS)
    return any(callable(handler) and not asks_for_nothing(handler) for handler in handlers)


def encode_wait(kind: Frame, number: int, *, is_blocked: bool, reason: str = "") -> bytes:
    """The body of an IDLE, BLOCKED or WITHDRAW."""
    if kind is Frame.WITHDRAW:
        return encode_numbered(number, reason)
    return encode_number(number) if kind is Frame.IDLE else encode_blocked(number, is_blocked=is_blocked)


def _list_others() -> list[threading.Thread]:
    own = threading.get_ident()
    return [thread for thread in threading.enumerate() if thread.ident != own]
