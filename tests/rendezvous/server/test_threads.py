"""A process that cannot start threads learns it from threads that it tries, and which end."""

import threading

import pytest

from rendezvous.server.threads import count_startable


def test_without_a_limit_as_many_threads_start_as_are_requested() -> None:
    before = set(threading.enumerate())
    assert count_startable(5) == 5
    assert set(threading.enumerate()) <= before


def test_where_no_more_can_be_started_those_that_were_are_counted_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_three(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_three)
    assert count_startable(16) == 3
    assert not any(thread.is_alive() for thread in started)
