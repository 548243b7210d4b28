"""How a caller says what an allreduce shall do."""

import pytest

from worker_runtime import reductions
from worker_runtime.errors import HorovodInternalError
from worker_runtime.reductions import (
    choose_reduction,
    choose_scatter_reduction,
    handle_average_backwards_compatibility,
)


def test_the_constants_are_horovods_numbers() -> None:
    constants = [getattr(reductions, name) for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product")]
    assert constants == [0, 1, 2, 3, 4, 5]


def test_the_average_is_the_default() -> None:
    assert choose_reduction(None) == reductions.Average
    assert choose_reduction(1) == reductions.Sum


@pytest.mark.parametrize(("average", "expected"), [(True, reductions.Average), (False, reductions.Sum)])
@pytest.mark.parametrize("choose", [choose_reduction, handle_average_backwards_compatibility])
def test_the_old_argument_still_works_and_warns(choose: object, average: bool, expected: int) -> None:  # noqa: FBT001 - Horovod's argument
    assert callable(choose)
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert choose(None, average) == expected


def test_the_old_and_the_new_argument_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        choose_reduction(reductions.Sum, average=True)


@pytest.mark.parametrize("op", [6, -1, "Sum", 0.5])
def test_an_unknown_operation_is_refused(op: int) -> None:
    with pytest.raises(ValueError, match=f"op={op!r} is not supported"):
        choose_reduction(op)


def test_a_reducescatter_has_but_average_and_sum() -> None:
    assert [choose_scatter_reduction(op) for op in (0, 1)] == [reductions.Average, reductions.Sum]
    for op, name in ((2, "Adasum"), (3, "Min"), (4, "Max"), (5, "Product")):
        with pytest.raises(HorovodInternalError, match=f"only supports AVERAGE and SUM. It was called with {name}"):
            choose_scatter_reduction(op)
    with pytest.raises(ValueError, match="op=6 is not supported"):
        choose_scatter_reduction(6)
