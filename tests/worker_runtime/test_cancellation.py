"""What is cancelled ends, whichever comes first: the cancellation, or that which it is to end."""

from worker_runtime.cancellation import Cancellation


def test_all_that_is_covered_is_ended() -> None:
    cancellation, ended = Cancellation(), list[str]()
    cancellation.cover(lambda: ended.append("first"))
    cancellation.cover(lambda: ended.append("second"))
    assert ended == []
    cancellation.cancel()
    assert ended == ["first", "second"]


def test_what_is_covered_afterwards_is_ended_at_once() -> None:
    cancellation, ended = Cancellation(), list[str]()
    cancellation.cancel()
    cancellation.cover(lambda: ended.append("late"))
    assert ended == ["late"]
