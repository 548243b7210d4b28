"""A submitted operation: answered, done, failed, and its result."""

from datetime import timedelta

import pytest

from tests.worker_runtime.conversation import SUM, Echo
from worker_runtime.core.questions import GLOBAL_SET, Question, Release
from worker_runtime.errors import HorovodInternalError, OperationFailedError, ShutDownError
from worker_runtime.executor import Executor
from worker_runtime.handles import Handle, are_running

TERMS = Release(0, Question(GLOBAL_SET, "x", SUM), (0, 1))


class Work:
    """Done, well or not, or not done yet."""

    def __init__(self, error: RuntimeError | None = None, *, is_done: bool = True) -> None:
        self.error = error
        self.is_done = is_done

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """As torch's."""
        del timeout
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """As torch's."""
        return self.is_done


def make_handle() -> Handle[bytes]:
    return Handle(Executor(), Echo("x"), thread=1)


def test_it_is_answered_before_it_is_done() -> None:
    handle = make_handle()
    assert not handle.is_answered
    assert not handle.is_done()
    work = Work(is_done=False)
    handle.begin(TERMS, (work,), memoryview(b"result"))
    assert handle.is_answered
    assert not handle.is_done()
    work.is_done = True
    assert handle.is_done()


def test_its_result_is_made_once_and_given_again() -> None:
    handle = make_handle()
    handle.begin(TERMS, (), memoryview(b"result"))
    assert handle.wait() == b"result"
    assert handle.wait() is handle.wait()


def test_what_is_finished_with_others_has_its_result_at_once() -> None:
    handle = make_handle()
    handle.complete(TERMS, b"result")
    assert handle.is_answered
    assert handle.is_done()
    assert handle.terms is TERMS
    assert handle.wait() == b"result"


def test_its_result_may_come_while_it_is_waited_for() -> None:
    class Answering(Executor):
        def await_answer(self, handle: Handle[bytes]) -> None:
            handle.complete(TERMS, b"result")

    handle = Handle(Answering(), Echo("x", b"its own"), thread=1)
    assert handle.wait() == b"result"


def test_a_failure_of_its_communication_is_ours_and_stays() -> None:
    handle = make_handle()
    handle.begin(TERMS, (Work(), Work(RuntimeError("connection closed"))), memoryview(b""))
    for _ in range(2):
        with pytest.raises(OperationFailedError, match="x failed on rank 0: connection closed"):
            handle.wait()


def test_what_it_was_told_to_fail_with_is_raised() -> None:
    handle = make_handle()
    handle.fail(HorovodInternalError("no"))
    assert handle.is_done()
    with pytest.raises(HorovodInternalError, match=r"^no$"):
        handle.wait()


def test_without_an_answer_nobody_will_come() -> None:
    with pytest.raises(ShutDownError, match="x on rank 0 was still pending when Horovod has been shut down"):
        make_handle().wait()


def test_letting_go_keeps_the_failure_and_drops_the_works() -> None:
    handle = make_handle()
    handle.begin(TERMS, (Work(RuntimeError("closed")),), memoryview(b""))
    handle.let_go()
    assert handle.works == ()
    with pytest.raises(OperationFailedError, match="closed"):
        handle.wait()


def test_a_result_that_could_not_be_made_is_made_by_the_next_wait() -> None:
    """The answer's data are kept until then: without them it would be made of this rank's own, silently wrong."""

    class Interrupted(Echo):
        is_first = True

        def finish(self, terms: Release, payload: memoryview) -> bytes:
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt
            return super().finish(terms, payload)

    handle: Handle[bytes] = Handle(Executor(), Interrupted("x"), thread=1)
    handle.begin(TERMS, (), memoryview(b"result"))
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    assert handle.wait() == b"result"


def test_others_need_this_rank_while_something_was_answered_and_is_not_done() -> None:
    asked, running, done = make_handle(), make_handle(), make_handle()
    running.begin(TERMS, (Work(is_done=False),), memoryview(b""))
    done.begin(TERMS, (Work(),), memoryview(b""))
    assert not are_running([asked, done])
    assert are_running([asked, running, done])


def test_what_shutdown_has_failed_meanwhile_keeps_that_reason() -> None:
    handle = make_handle()

    class Ended(Work):
        def wait(self, timeout: timedelta = timedelta()) -> bool:
            handle.fail(ShutDownError("x", 0))
            return super().wait(timeout)

    handle.begin(TERMS, (Ended(RuntimeError("connection closed")),), memoryview(b""))
    with pytest.raises(ShutDownError):
        handle.wait()
