"""What a thread tells that waits; how it is told, and heard, is in the driver's tests."""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.conversation import Echo, Player
from tests.worker_runtime.ranks import RankPool
from worker_runtime import waiting
from worker_runtime.accord import Accord
from worker_runtime.handles import Handle
from worker_runtime.waiting import PATIENCE_SECONDS, Wait, encode_wait
from worker_runtime.wire import Frame, encode_blocked, encode_number, encode_numbered

LIMIT_SECONDS = 10.0
ROOT = Path(__file__).parent.parent.parent


class Speaker:
    """Notes what is told; a question may be answered already."""

    def __init__(self, *, is_pending: bool = True) -> None:
        self.askers: set[int] = set()
        self.told: list[object] = []
        self._is_pending = is_pending

    def speak_of(self, handle: Handle[object], kind: Frame, *, is_blocked: bool = False, reason: str = "") -> bool:
        """Of any question."""
        del handle, reason
        self.told.append((kind, is_blocked))
        return self._is_pending


def begin(speaker: Speaker, seconds: float) -> Wait:
    """A wait that has lasted so long."""
    ours, theirs = socket.socketpair()
    handle: Handle[object] = Handle(Player(ours), Echo("x"), threading.get_ident())  # type: ignore[arg-type]  # one is enough
    for end in (ours, theirs):
        end.close()
    return Wait(speaker, Accord(), handle, time.monotonic() - seconds)


@pytest.fixture
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the timer of this test's own time limit."""
    monkeypatch.setattr(waiting, "may_signal_ask", lambda: False)


@pytest.mark.usefixtures("no_signals")
def test_it_is_told_once_when_it_is_long_and_when_it_is_too_long_and_taken_back() -> None:
    speaker = Speaker()
    wait = begin(speaker, 0.0)
    wait.go_on()
    assert (speaker.told, wait.listens_seconds) == ([], PATIENCE_SECONDS)
    wait = begin(speaker, 0.5)
    wait.go_on()
    wait.go_on()
    assert speaker.told == [(Frame.IDLE, False)]
    wait = begin(speaker, 2.0)
    wait.go_on()
    wait.go_on()
    wait.end()
    assert speaker.told[1:] == [(Frame.IDLE, False), (Frame.BLOCKED, True), (Frame.BLOCKED, False)]
    assert wait.listens_seconds > PATIENCE_SECONDS


@pytest.mark.usefixtures("no_signals")
def test_what_was_not_told_is_not_taken_back() -> None:
    speaker = Speaker(is_pending=False)
    wait = begin(speaker, 2.0)
    wait.go_on()
    wait.end()
    assert speaker.told == [(Frame.IDLE, False), (Frame.BLOCKED, True)]


def test_a_rank_whose_signal_handlers_may_ask_is_never_blocked_but_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "may_signal_ask", lambda: True)
    speaker = Speaker()
    begin(speaker, 2.0).go_on()
    assert speaker.told == [(Frame.IDLE, False)]


@pytest.mark.usefixtures("no_signals")
@pytest.mark.parametrize("has_asked", [False, True])
def test_a_rank_with_another_thread_is_never_blocked_and_may_help_while_that_has_not_asked(*, has_asked: bool) -> None:
    speaker, end = Speaker(), threading.Event()
    thread = threading.Thread(target=end.wait, args=(LIMIT_SECONDS,))
    thread.start()
    if has_asked and thread.ident is not None:
        speaker.askers.add(thread.ident)
    begin(speaker, 2.0).go_on()
    end.set()
    thread.join(LIMIT_SECONDS)
    assert speaker.told == ([] if has_asked else [(Frame.IDLE, False)])


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
from worker_runtime.waiting import may_signal_ask

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


def test_what_a_timer_asks_for_while_the_only_thread_waits_comes_in_time(ranks: RankPool) -> None:
    def body() -> object:
        mine, other = ("a", "b") if hvd.rank() == 0 else ("b", "a")
        handles: list[int] = []
        usual = waiting._BLOCKED_SECONDS
        waiting._BLOCKED_SECONDS = 0.1
        former = signal.signal(
            signal.SIGALRM, lambda *_: handles.append(hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name=other))
        )
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            waited = hvd.allreduce(torch.ones(1), op=hvd.Sum, name=mine).item()
            while not handles:  # the other's timer was first
                time.sleep(0.001)
            return waited, hvd.synchronize(handles[0]).item()
        finally:
            signal.signal(signal.SIGALRM, former)
            waiting._BLOCKED_SECONDS = usual

    assert ranks.run(body) == [(2.0, 2.0)] * 2


def test_frames() -> None:
    assert encode_wait(Frame.IDLE, 3, is_blocked=False) == encode_number(3)
    assert encode_wait(Frame.BLOCKED, 3, is_blocked=True) == encode_blocked(3, is_blocked=True)
    assert encode_wait(Frame.WITHDRAW, 3, is_blocked=False, reason="why") == encode_numbered(3, "why")
