"""The numbers by which programs know their asynchronous operations."""

from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.rendezvous.counting import count_steps
from worker_runtime.engine.handle_table import HandleTable
from worker_runtime.errors import HorovodInternalError


def give(*outcomes: object, is_done: bool = True, has_succeeded: bool = False) -> Mock:
    """A handle of which each wait returns or raises the next of these."""
    return Mock(**{"wait.side_effect": outcomes, "is_done.return_value": is_done}, has_succeeded=has_succeeded)


def make_table() -> HandleTable:
    return HandleTable(lambda handle: cast("Mock", handle).wait(), lambda handle: cast("Mock", handle).is_done())


def test_numbers_increase_from_one_in_each_table() -> None:
    for table in (make_table(), make_table()):
        assert [table.add(give("a")) for _ in range(3)] == [1, 2, 3]
        table.synchronize(3)
        assert table.add(give("a")) == 4
        assert (list(table), len(table)) == ([1, 2, 4], 3)


@pytest.mark.parametrize("is_done", [True, False])
def test_poll_can_be_repeated(*, is_done: bool) -> None:
    table = make_table()
    number = table.add(give("a", is_done=is_done))
    assert [table.poll(number), table.poll(number)] == [is_done] * 2


def test_a_result_is_converted_and_given_once() -> None:
    table = make_table()
    number = table.add(give("a"), str.upper)
    assert table.synchronize(number) == "A"
    for ask in (table.synchronize, table.poll):
        with pytest.raises(ValueError, match=rf"^Handle {number} was not created or has been cleared\.$"):
            ask(number)


def test_a_search_for_a_handle_takes_a_few_steps() -> None:
    table = HandleTable(lambda _: "a", bool)
    number = table.add(give())
    assert count_steps(lambda: table.synchronize(number)) <= 20  # a program may synchronize a thousand together


def test_a_failed_operation_leaves_the_table() -> None:
    table = make_table()
    number = table.add(give(HorovodInternalError("lost")))
    with pytest.raises(HorovodInternalError, match="lost"):
        table.synchronize(number)
    assert len(table) == 0


def test_a_wait_that_was_interrupted_may_be_repeated() -> None:
    table = make_table()
    number = table.add(give(KeyboardInterrupt(), "a"))
    with pytest.raises(KeyboardInterrupt):
        table.synchronize(number)
    assert table.synchronize(number) == "a"


def test_a_handle_whose_result_was_being_computed_when_its_wait_was_interrupted_is_cleared() -> None:
    table = make_table()
    number = table.add(give(KeyboardInterrupt(), "an average that was divided twice", has_succeeded=True))
    with pytest.raises(KeyboardInterrupt):
        table.synchronize(number)
    assert len(table) == 0


@pytest.mark.parametrize("convert", [np.int64, np.array])
def test_a_handle_may_be_numpys(convert: Callable[[int], int]) -> None:
    table = make_table()
    assert table.synchronize(convert(table.add(give("a")))) == "a"


@pytest.mark.parametrize("number", [0, 1, -3, None, "1", torch.ones(2)], ids=str)
def test_an_unknown_handle_raises(number: object) -> None:
    """Horovod's synchronize returns None, which hides that the caller waits for nothing."""
    with pytest.raises(ValueError, match="was not created"):
        make_table().synchronize(number)
