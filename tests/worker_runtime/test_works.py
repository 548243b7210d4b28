"""Waiting for torch's works: in slices, open to signals, and without keeping what a failure's frames hold."""

import time
from datetime import timedelta

import pytest

from worker_runtime.works import FailedWork, await_work, await_works, describe_cause, end_before


class Scripted:
    """A work that is done after some slices, well or not."""

    def __init__(self, slices: int = 0, error: RuntimeError | None = None) -> None:
        self.slices = slices
        self.error = error
        self.waits: list[timedelta | None] = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As torch's: raises at the end of a slice as well as when it failed."""
        self.waits.append(timeout)
        self.slices -= 1
        if self.slices >= 0:
            raise RuntimeError("the slice is over")
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """Whether all slices are over."""
        return self.slices <= 0


def test_a_work_is_awaited_slice_by_slice() -> None:
    work = Scripted(slices=3)
    await_work(work)
    assert len(work.waits) == 4
    assert all(timeout is not None and timedelta() < timeout < timedelta(seconds=1) for timeout in work.waits[:-1])


def test_the_true_failure_is_raised_and_not_the_slices() -> None:
    with pytest.raises(RuntimeError, match="connection closed"):
        await_work(Scripted(slices=2, error=RuntimeError("connection closed")))


def test_the_first_failure_comes_back_without_frames() -> None:
    error = await_works([Scripted(), Scripted(error=RuntimeError("first")), Scripted(error=RuntimeError("second"))])
    assert str(error) == "first"
    assert error is not None
    assert error.__traceback__ is None
    assert await_works([Scripted(), Scripted()]) is None


def test_works_that_do_not_end_are_given_up_at_the_deadline() -> None:
    assert end_before(
        [Scripted(slices=2), Scripted(error=RuntimeError("failed, so it has ended"))], time.monotonic() + 5
    )
    assert not end_before([Scripted(slices=10**9)], time.monotonic())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[/pytorch/gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:4711. This is typically caused by more.",
            "Connection closed by peer [127.0.0.1]:4711",
        ),
        ("timed out!", "timed out"),
        ("", "RuntimeError"),
    ],
)
def test_a_cause_is_told_without_source_position_and_general_advice(text: str, cause: str) -> None:
    assert describe_cause(RuntimeError(text)) == cause


def test_what_could_not_be_begun_has_ended_and_raises_why() -> None:
    error = RuntimeError("no memory")
    work = FailedWork(error)
    assert work.is_completed()
    assert await_works([work]) is error
    assert error.__traceback__ is None


def test_whoever_waits_listens_between_the_slices() -> None:
    heard: list[int] = []

    class Slow:
        def wait(self, timeout: object = None) -> bool:  # noqa: ARG002 - as torch has it
            if len(heard) < 3:
                raise RuntimeError("the slice is over")
            return True

        def is_completed(self) -> bool:
            return len(heard) >= 3

    assert await_works([Slow()], lambda: heard.append(1)) is None
    assert len(heard) == 3
