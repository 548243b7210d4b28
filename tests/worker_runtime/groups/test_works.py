"""What is ended when forming a group is given up."""

from worker_runtime.groups.works import Cancellation


def test_a_cancellation_ends_what_it_covers_before_and_after_it() -> None:
    cancellation, ended = Cancellation(), list[str]()
    for name in ("first", "second"):
        cancellation.cover(lambda name=name: ended.append(name))
    assert ended == []
    cancellation.cancel()
    cancellation.cover(lambda: ended.append("late"))
    assert ended == ["first", "second", "late"]
