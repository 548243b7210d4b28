"""Waiting for works whose library knows neither time limits nor interruptions."""

import threading
import time
from datetime import timedelta

import pytest

from tests.worker_runtime.groups.backends.stubs import LIMIT, StubWork
from worker_runtime.groups.backends.ucc import PolledWork
from worker_runtime.groups.torch_groups import await_work, end_before

SHORT = timedelta(milliseconds=5)


def test_a_work_that_has_ended_is_waited_for_once() -> None:
    work = StubWork()
    assert PolledWork(work, threading.Event(), LIMIT).wait()
    assert work.limits == [None]


def test_a_work_that_ends_meanwhile_is_waited_for() -> None:
    work = StubWork(is_ended=False)
    waiting = threading.Thread(target=await_work, args=(PolledWork(work, threading.Event(), LIMIT),))
    waiting.start()
    while work.looks < 20:  # past the spinning, within the test's time limit
        time.sleep(0)
    work.end()
    waiting.join(LIMIT.total_seconds())
    assert not waiting.is_alive()


@pytest.mark.parametrize("limits", [(LIMIT, SHORT), (SHORT, None)])
def test_every_wait_has_a_limit_after_which_the_work_continues(limits: tuple[timedelta, timedelta | None]) -> None:
    work = StubWork(is_ended=False)
    polled = PolledWork(work, threading.Event(), limits[0])
    with pytest.raises(RuntimeError, match=r"did not complete within 0\.005 s"):
        polled.wait(limits[1])
    assert (polled.is_completed(), polled.is_running) == (False, True)
    work.end()
    assert polled.wait()
    assert (polled.is_completed(), polled.is_running) == (True, False)


def test_a_failure_of_the_work_is_raised() -> None:
    polled = PolledWork(StubWork(error="a peer has gone"), threading.Event(), LIMIT)
    with pytest.raises(RuntimeError, match="a peer has gone"):
        await_work(polled)


def test_an_interruption_ends_the_wait_and_not_the_work() -> None:
    work, interruption = StubWork(is_ended=False), threading.Event()
    polled = PolledWork(work, interruption, LIMIT)
    errors: list[str] = []

    def wait() -> None:
        try:
            await_work(polled)
        except RuntimeError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while work.looks < 20:
        time.sleep(0)
    interruption.set()
    waiting.join(LIMIT.total_seconds())
    assert errors == ["it was interrupted, since a peer was lost or the job ends"]
    assert end_before([polled], time.monotonic())  # no rank waits for it at the end either
    assert polled.is_running
