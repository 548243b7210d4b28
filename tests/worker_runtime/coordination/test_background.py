"""The thread that drives in the background; how it meets those who wait is in the driver's tests."""

import os
import select
import threading
from types import SimpleNamespace

import pytest

from tests.waiting import LIMIT_SECONDS
from worker_runtime.coordination import background as background_module
from worker_runtime.coordination.background import Background


class _Driven:
    """Counts how often it is driven, and is held up meanwhile until `may_continue` is released as often."""

    def __init__(self, growing: int = 0) -> None:
        self.looks = 0
        self.growing = growing  # until so many looks something more was asked
        self.driven = threading.Semaphore(0)
        self.may_continue = threading.Semaphore(0)
        self.count = 0

    def count_asked(self) -> int:
        self.looks += 1
        return min(self.looks, self.growing)

    def make(self) -> Background:
        return Background(self.drive, self.count_asked)

    def drive(self, poller: select.poll) -> None:
        del poller
        self.count += 1
        self.driven.release()
        self.may_continue.acquire(timeout=LIMIT_SECONDS)

    def await_turn(self) -> bool:
        self.may_continue.release()
        return self.driven.acquire(timeout=LIMIT_SECONDS)


def test_the_background_drives_when_its_bell_rings_and_not_before() -> None:
    driven = _Driven()
    background = driven.make()
    assert not driven.driven.acquire(timeout=0.05)
    for number in range(3):
        background.ring()
        assert driven.await_turn()
        assert driven.count == number + 1
    background.close()


def test_rings_during_a_turn_lead_to_one_more() -> None:
    driven = _Driven()
    background = driven.make()
    background.ring()
    assert driven.driven.acquire(timeout=LIMIT_SECONDS)
    for _ in range(50):
        background.ring()
    assert driven.await_turn()
    driven.may_continue.release()
    background.close()
    assert driven.count == 2


def test_the_bell_is_not_closed_under_a_thread_that_drives_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a closed descriptor would soon be that of another file."""
    monkeypatch.setattr(background_module, "_JOIN_SECONDS", 0.0)
    driven = _Driven()
    background = driven.make()
    background.ring()
    assert driven.driven.acquire(timeout=LIMIT_SECONDS)
    background.close()
    os.fstat(background._bell)
    driven.may_continue.release()
    background._thread.join(LIMIT_SECONDS)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(background._bell)


def test_the_background_thread_drives_after_a_burst_of_submissions() -> None:
    driven = _Driven(growing=6)
    background = driven.make()
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
    background = driven.make()
    background.ring()
    assert driven.await_turn()
    background.close()
    assert set(limits) == {None}


def test_closing_leaves_no_thread_and_no_descriptor() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a snapshot
    for _ in range(10):
        _Driven().make().close()
    assert threading.active_count() <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]  # noqa: PTH208 - a snapshot
