"""What a thread tells that waits, and the one that drives in the background; how both meet is in the driver's tests."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.worker_runtime.conversation import LIMIT_SECONDS, Echo, Errand, Player
from worker_runtime.coordination import background as background_module
from worker_runtime.coordination.accord import Accord
from worker_runtime.coordination.background import Background
from worker_runtime.coordination.waiting import PATIENCE_SECONDS, Patience, Wait, encode_wait
from worker_runtime.coordination.wire import Frame, encode_blocked, encode_number, encode_numbered
from worker_runtime.engine.handles import Handle

ROOT = Path(__file__).parents[3]
IDLE, BLOCKED, FREE = (Frame.IDLE, False), (Frame.BLOCKED, True), (Frame.BLOCKED, False)


class _Speaker:
    """Notes what is told; a question may be answered already."""

    def __init__(self, *, is_pending: bool = True) -> None:
        self.askers: set[int] = set()
        self.told: list[object] = []
        self._is_pending = is_pending

    def speak_of(self, handle: Handle[object], kind: Frame, *, is_blocked: bool = False) -> bool:
        del handle
        self.told.append((kind, is_blocked))
        return self._is_pending


def begin(speaker: _Speaker, seconds: float, *, heeds_signals: bool = False) -> Wait:
    """A wait that has lasted so long; unless told otherwise it does not heed the timer of this test's time limit."""
    ours, theirs = socket.socketpair()
    handle = Handle(Player(ours), Echo("x"), threading.get_ident())
    for end in (ours, theirs):
        end.close()
    return Wait(speaker, Accord(), handle, time.monotonic() - seconds, Patience(100.0, heeds_signals=heeds_signals))


def test_a_wait_is_told_once_when_it_is_long_and_when_it_is_too_long_and_taken_back() -> None:
    speaker = _Speaker()
    wait = begin(speaker, -100.0)
    wait.go_on()
    assert (speaker.told, wait.listens_seconds) == ([], PATIENCE_SECONDS)
    wait = begin(speaker, 0.5)
    wait.go_on()
    wait.go_on()
    assert speaker.told == [IDLE]
    wait = begin(speaker, 200.0)
    wait.go_on()
    wait.go_on()
    wait.end()
    assert speaker.told[1:] == [IDLE, BLOCKED, FREE]
    assert wait.listens_seconds > PATIENCE_SECONDS


def test_what_was_not_told_is_not_taken_back() -> None:
    speaker = _Speaker(is_pending=False)
    wait = begin(speaker, 200.0)
    wait.go_on()
    wait.end()
    assert speaker.told == [IDLE, BLOCKED]


def test_a_rank_whose_signal_handlers_may_ask_is_never_blocked_but_may_help() -> None:
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    speaker = _Speaker()
    begin(speaker, 200.0, heeds_signals=True).go_on()
    signal.signal(signal.SIGUSR1, former)
    assert speaker.told == [IDLE]


@pytest.mark.parametrize("has_asked", [False, True])
def test_a_rank_with_another_thread_is_never_blocked_and_may_help_while_that_has_not_asked(*, has_asked: bool) -> None:
    speaker, end = _Speaker(), threading.Event()
    other = Errand(end.wait, daemon=has_asked)  # a daemon counts only when it has asked before
    if has_asked and other.ident is not None:
        speaker.askers.add(other.ident)
    begin(speaker, 200.0).go_on()
    end.set()
    other.finish()
    assert speaker.told == ([] if has_asked else [IDLE])


# What is done, and whether a signal may ask for something then.
HANDLERS = {
    "signal.signal(signal.SIGALRM, print)": False,
    "signal.signal(signal.SIGALRM, print), signal.alarm(60)": True,
    "signal.signal(signal.SIGALRM, print), signal.setitimer(signal.ITIMER_REAL, 60.0, 60.0)": True,
    "signal.signal(signal.SIGALRM, signal.SIG_DFL), signal.alarm(60)": False,
    "signal.signal(signal.SIGRTMIN, print)": True,
    "signal.signal(signal.SIGUSR1, print)": True,
    "signal.signal(signal.SIGUSR1, signal.SIG_IGN)": False,
    "signal.signal(signal.SIGCHLD, print)": False,
    "signal.signal(signal.SIGTERM, print)": False,
}
ASKS = f"""
import os, signal
from worker_runtime.coordination.waiting import may_signal_ask

assert not may_signal_ask()
for line in {list(HANDLERS)}:
    pid = os.fork()
    if pid == 0:
        eval(line)
        os._exit(may_signal_ask())
    print(bool(os.waitpid(pid, 0)[1]), line)
"""


def test_handlers_of_timers_and_callers_count_and_no_others() -> None:
    """Each in a process of its own: the time limit of a test is a timer."""
    ran = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert ran.stdout.splitlines() == [f"{expected} {line}" for line, expected in HANDLERS.items()]


def test_a_wait_is_told_in_the_frame_of_its_kind() -> None:
    assert encode_wait(Frame.IDLE, 3, is_blocked=False) == encode_number(3)
    assert encode_wait(Frame.BLOCKED, 3, is_blocked=True) == encode_blocked(3, is_blocked=True)
    assert encode_wait(Frame.WITHDRAW, 3, is_blocked=False, reason="why") == encode_numbered(3, "why")


class _Driven:
    """Counts how often it is driven, and is held up meanwhile until `go_on` is released as often."""

    def __init__(self, growing: int = 0) -> None:
        self.looks = 0
        self.growing = growing  # until so many looks something more was asked
        self.driven = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.count = 0

    @property
    def asked(self) -> int:
        self.looks += 1
        return min(self.looks, self.growing)

    def drive_in_background(self, poller: select.poll) -> None:
        del poller
        self.count += 1
        self.driven.release()
        self.go_on.acquire(timeout=LIMIT_SECONDS)

    def await_turn(self) -> bool:
        self.go_on.release()
        return self.driven.acquire(timeout=LIMIT_SECONDS)


def test_the_background_drives_when_its_bell_rings_and_not_before() -> None:
    driven = _Driven()
    background = Background(driven)
    assert not driven.driven.acquire(timeout=0.05)
    for number in range(3):
        background.ring()
        assert driven.await_turn()
        assert driven.count == number + 1
    background.close()


def test_rings_during_a_turn_lead_to_one_more() -> None:
    driven = _Driven()
    background = Background(driven)
    background.ring()
    assert driven.driven.acquire(timeout=LIMIT_SECONDS)
    for _ in range(50):
        background.ring()
    assert driven.await_turn()
    driven.go_on.release()
    background.close()
    assert driven.count == 2


def test_the_bell_is_not_closed_under_a_thread_that_drives_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number would soon be that of another file."""
    monkeypatch.setattr(background_module, "_JOIN_SECONDS", 0.0)
    driven = _Driven()
    background = Background(driven)
    background.ring()
    assert driven.driven.acquire(timeout=LIMIT_SECONDS)
    background.close()
    os.fstat(background._bell)
    driven.go_on.release()
    background._thread.join(LIMIT_SECONDS)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(background._bell)


def test_a_burst_is_driven_when_it_has_ended() -> None:
    driven = _Driven(growing=6)
    background = Background(driven)
    background.ring()
    assert driven.await_turn()
    assert driven.looks > 6
    background.close()


def test_the_background_sleeps_without_a_limit_until_its_bell_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[object] = []

    class Poll:
        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, limit: float | None = None) -> object:
            limits.append(limit)
            return self._poll.poll(limit)

    monkeypatch.setattr(background_module, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    driven = _Driven()
    background = Background(driven)
    background.ring()
    assert driven.await_turn()
    background.close()
    assert set(limits) == {None}


def test_closing_leaves_no_thread_and_no_descriptor() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a snapshot
    for _ in range(10):
        Background(_Driven()).close()
    assert threading.active_count() <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]  # noqa: PTH208 - the same
