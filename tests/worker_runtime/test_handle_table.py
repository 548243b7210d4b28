"""Numbers for operations: given, looked at, and gone."""

import threading

import pytest

from worker_runtime.collectives import Barrier
from worker_runtime.errors import HorovodInternalError
from worker_runtime.executor import Executor
from worker_runtime.handle_table import HandleTable
from worker_runtime.handles import Handle
from worker_runtime.operation import Members

ALONE = Members(0, (0,), 0)


class FakeHandle(Handle[str]):
    """Waits for nobody."""

    def __init__(self, result: str | BaseException, *, is_done: bool = True) -> None:
        super().__init__(Executor(), Barrier(ALONE), threading.get_ident())  # type: ignore[arg-type]  # it is never run
        self._outcome = result
        self._is_done = is_done

    def is_done(self) -> bool:
        """As it was told."""
        return self._is_done

    def wait(self) -> str:
        """Return or raise at once."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def test_numbers_increase_from_one_in_each_table() -> None:
    for table in (HandleTable(), HandleTable()):
        assert [table.add(FakeHandle("a")) for _ in range(3)] == [1, 2, 3]
        table.synchronize(3)
        assert table.add(FakeHandle("a")) == 4
        assert (list(table), len(table)) == ([1, 2, 4], 3)


@pytest.mark.parametrize("is_done", [True, False])
def test_poll_says_whether_it_is_done_as_often_as_asked(is_done: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    table = HandleTable()
    number = table.add(FakeHandle("a", is_done=is_done))
    assert [table.poll(number), table.poll(number)] == [is_done] * 2


def test_a_result_is_converted_and_given_once() -> None:
    table = HandleTable()
    number = table.add(FakeHandle("a"), str.upper)
    assert table.synchronize(number) == "A"
    for ask in (table.synchronize, table.poll):
        with pytest.raises(ValueError, match=rf"^Handle {number} was not created or has been cleared\.$"):
            ask(number)


def test_a_failed_operation_is_gone_too() -> None:
    table = HandleTable()
    number = table.add(FakeHandle(HorovodInternalError("lost")))
    with pytest.raises(HorovodInternalError, match="lost"):
        table.synchronize(number)
    assert len(table) == 0


def test_a_wait_that_was_interrupted_may_be_repeated() -> None:
    table = HandleTable()
    handle = FakeHandle(KeyboardInterrupt())
    number = table.add(handle)
    with pytest.raises(KeyboardInterrupt):
        table.synchronize(number)
    handle._outcome = "a"
    assert table.synchronize(number) == "a"


@pytest.mark.parametrize("number", [0, 1, -3, None, "1"])
def test_an_unknown_handle_is_an_error(number: object) -> None:
    with pytest.raises(ValueError, match="was not created"):
        HandleTable().synchronize(number)  # type: ignore[arg-type]  # that is the test
