"""A submitted operation: its works, its response, and its result."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock, call

import pytest

from tests.worker_runtime.conversation import SUM, Echo
from tests.worker_runtime.generation import Pending
from worker_runtime.coordination.operation import Handle, OperationState, are_running
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Release, Request
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError, IllegalTransitionError, OperationFailedError, ShutDownError
from worker_runtime.groups.torch_groups import FailedWork, await_work, await_works, describe_cause, end_before

RELEASE = Release(0, Request(GLOBAL_SET, "x", SUM), (0, 1))
RESULT = memoryview(b"result")


# How a handle is moved, from each state to the next; and by which moves it comes there.
MOVES: dict[str, Callable[[Handle[bytes]], None]] = {
    "begin": lambda handle: handle.begin(RELEASE, (), RESULT),
    "complete": lambda handle: handle.complete(RELEASE, b"result"),
    "succeed": lambda handle: handle.succeed(),
    "finish": lambda handle: handle.finish(b"result"),
    "reset": lambda handle: handle.reset(),
    "fail": lambda handle: handle.fail(HorovodInternalError("no")),
}
MOVES_TO_STATE = {
    OperationState.ASKED: [],
    OperationState.RELEASED: ["begin"],
    OperationState.SUCCEEDED: ["begin", "succeed"],
    OperationState.FINISHED: ["begin", "succeed", "finish"],
    OperationState.FAILED: ["fail"],
}
LEGAL = {
    (OperationState.ASKED, "begin"): OperationState.RELEASED,
    (OperationState.ASKED, "complete"): OperationState.FINISHED,
    (OperationState.ASKED, "fail"): OperationState.FAILED,
    (OperationState.RELEASED, "succeed"): OperationState.SUCCEEDED,
    (OperationState.RELEASED, "reset"): OperationState.ASKED,
    (OperationState.RELEASED, "fail"): OperationState.FAILED,
    (OperationState.SUCCEEDED, "succeed"): OperationState.SUCCEEDED,
    (OperationState.SUCCEEDED, "finish"): OperationState.FINISHED,
    # What has ended stays so: a later failure or release has no effect.
    (OperationState.SUCCEEDED, "fail"): OperationState.SUCCEEDED,
    (OperationState.FINISHED, "fail"): OperationState.FINISHED,
    (OperationState.FAILED, "fail"): OperationState.FAILED,
    (OperationState.FAILED, "begin"): OperationState.FAILED,
    (OperationState.FAILED, "complete"): OperationState.FAILED,
}


def make_handle(operation: Echo | None = None) -> Handle[bytes]:
    return Handle(operation or Echo("x"))


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("state", OperationState)
def test_an_illegal_transition_raises_and_changes_nothing(state: OperationState, move: str) -> None:
    handle = make_handle()
    for each in MOVES_TO_STATE[state]:
        MOVES[each](handle)
    assert handle.state is state
    if (state, move) in LEGAL:
        MOVES[move](handle)
    else:
        with pytest.raises(IllegalTransitionError, match=f"^x is {state.value} and cannot become"):
            MOVES[move](handle)
    assert handle.state is LEGAL.get((state, move), state)


def test_a_handle_is_answered_before_it_is_done() -> None:
    handle, work = make_handle(), Pending()
    assert (handle.is_answered, handle.is_done()) == (False, False)
    handle.begin(RELEASE, (work,), RESULT)
    assert (handle.is_answered, handle.is_done()) == (True, False)
    work.is_done = True
    assert handle.is_done()


def test_a_result_is_made_once_and_returned_by_each_wait() -> None:
    handle, engine = make_handle(), Engine()
    handle.begin(RELEASE, (), RESULT)
    assert engine.wait(handle) == b"result"
    assert engine.wait(handle) is engine.wait(handle)


def test_an_operation_that_is_finished_with_others_has_its_result() -> None:
    handle = make_handle()
    handle.complete(RELEASE, b"result")
    assert (handle.is_answered, handle.is_done(), handle.release) == (True, True, RELEASE)
    assert Engine().wait(handle) == b"result"


def test_a_result_may_come_while_it_is_waited_for() -> None:
    class Answering(Engine):
        def await_response(self, handle: Handle[Any]) -> None:
            handle.complete(RELEASE, b"result")

    assert Answering().wait(Handle(Echo("x", b"its own"))) == b"result"


def test_a_failed_communication_raises_each_time_and_keeps_no_works() -> None:
    handle, engine = make_handle(), Engine()
    handle.begin(RELEASE, (Pending(is_done=True), Pending(is_bad=True)), memoryview(b""))
    for _ in range(2):
        with pytest.raises(OperationFailedError, match="x failed on rank 0: Connection closed by peer"):
            engine.wait(handle)
        assert handle.works == ()


def test_the_error_of_a_failed_handle_is_raised() -> None:
    handle = make_handle()
    handle.fail(HorovodInternalError("no"))
    handle.fail(HorovodInternalError("a later reason"))
    assert handle.is_done()
    with pytest.raises(HorovodInternalError, match=r"^no$"):
        Engine().wait(handle)


def test_a_wait_without_a_response_to_come_raises() -> None:
    with pytest.raises(ShutDownError, match="x on rank 0 was still pending when Horovod has been shut down"):
        Engine().wait(make_handle())


def test_a_result_that_could_not_be_made_is_made_by_the_next_wait() -> None:
    """The response's data are kept until then: without them it would be made of this rank's own, silently wrong."""
    operation = Echo("x")
    operation.finish = Mock(side_effect=[KeyboardInterrupt, b"result"])
    handle, engine = make_handle(operation), Engine()
    handle.begin(RELEASE, (), RESULT)
    with pytest.raises(KeyboardInterrupt):
        engine.wait(handle)
    assert engine.wait(handle) == b"result"
    assert operation.finish.mock_calls == [call(RELEASE, RESULT)] * 2


def test_other_ranks_need_this_rank_while_an_answered_operation_is_not_done() -> None:
    asked, running, done = make_handle(), make_handle(), make_handle()
    running.begin(RELEASE, (Pending(),), memoryview(b""))
    done.begin(RELEASE, (Pending(is_done=True),), memoryview(b""))
    assert not are_running([asked, done])
    assert are_running([asked, running, done])


def test_an_operation_that_shutdown_has_failed_keeps_that_reason() -> None:
    handle = make_handle()

    class Ended(Pending):
        def wait(self, timeout: timedelta = timedelta()) -> bool:
            handle.fail(ShutDownError("x", 0))
            return super().wait(timeout)

    handle.begin(RELEASE, (Ended(is_bad=True),), memoryview(b""))
    with pytest.raises(ShutDownError):
        Engine().wait(handle)


class Scripted:
    """A work that ends after some slices of waiting, well or not."""

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


def test_a_work_is_awaited_in_short_slices_between_which_its_waiter_listens() -> None:
    work, heard = Scripted(slices=3), list[int]()
    assert await_works([work], lambda: heard.append(1)) is None
    assert (len(work.waits), len(heard)) == (4, 2)  # the last wait is for a work that has ended
    assert all(timeout is not None and timedelta() < timeout < timedelta(seconds=1) for timeout in work.waits[:-1])


def test_the_true_failure_is_raised_and_not_the_slices() -> None:
    with pytest.raises(RuntimeError, match="connection closed"):
        await_work(Scripted(slices=2, error=RuntimeError("connection closed")))


def test_the_first_failure_of_several_works_comes_back_without_frames() -> None:
    error = await_works([Scripted(), Scripted(error=RuntimeError("first")), Scripted(error=RuntimeError("second"))])
    assert str(error) == "first"
    assert error.__traceback__ is None
    assert await_works([Scripted(), Scripted()]) is None


def test_works_that_do_not_end_are_given_up_at_the_deadline() -> None:
    failed = Scripted(error=RuntimeError("failed, so it has ended"))
    assert end_before([Scripted(slices=2), failed], time.monotonic() + 20)
    assert not end_before([Scripted(slices=10**9)], time.monotonic())


LONG = "[/pytorch/gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:4711. This is typically caused by more."


@pytest.mark.parametrize(
    ("text", "cause"),
    [(LONG, "Connection closed by peer [127.0.0.1]:4711"), ("timed out!", "timed out"), ("", "RuntimeError")],
)
def test_a_cause_is_shown_without_source_position_and_general_advice(text: str, cause: str) -> None:
    assert describe_cause(RuntimeError(text)) == cause


def test_an_operation_that_could_not_begin_has_ended_and_raises_the_reason() -> None:
    error = RuntimeError("no memory")
    work = FailedWork(error)
    assert work.is_completed()
    assert await_works([work]) is error
    assert error.__traceback__ is None
