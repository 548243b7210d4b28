"""The thread in the background, without a conversation."""

import os
import select
import threading
import time

from worker_runtime.background import Background

LIMIT_SECONDS = 10.0


class Counter:
    """Counts how often it is driven."""

    def __init__(self) -> None:
        self.asked = 0
        self.driven = threading.Semaphore(0)

    def drive_in_background(self, poller: select.poll) -> None:
        """Note it."""
        del poller
        self.driven.release()


def test_it_drives_when_the_bell_rings_and_not_before() -> None:
    counter = Counter()
    background = Background(counter)
    assert not counter.driven.acquire(timeout=0.05)
    for _ in range(3):
        counter.asked += 1
        background.ring()
        assert counter.driven.acquire(timeout=LIMIT_SECONDS)
    background.close()


def test_a_burst_is_driven_once_when_it_has_ended() -> None:
    counter = Counter()
    background = Background(counter)
    for _ in range(50):
        counter.asked += 1
        background.ring()
    assert counter.driven.acquire(timeout=LIMIT_SECONDS)
    background.close()
    assert counter.driven._value < 5


def test_closing_leaves_no_thread_and_no_descriptor() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a snapshot
    for _ in range(10):
        Background(Counter()).close()
    assert threading.active_count() <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]  # noqa: PTH208 - the same


def test_it_sleeps_while_nothing_is_asked() -> None:
    background = Background(Counter())
    began = time.thread_time(), time.process_time()
    time.sleep(0.2)  # what is measured
    spent = time.process_time() - began[1]
    background.close()
    assert spent < 0.02
