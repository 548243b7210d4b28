"""What goes through a gate, and that the table in its docstring says so."""

import pytest
import torch
import torch.distributed as dist

from worker_runtime.backends import gate
from worker_runtime.backends.gate import MPI, TRAVELLING, UCC

SUM, AVERAGE, BAND = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.BAND
MEASURED = {torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64}


def test_the_docstring_holds_the_table() -> None:
    lines = [line.strip() for line in (gate.__doc__ or "").splitlines()]
    for line in gate.make_table().splitlines():
        assert line.strip() in lines


@pytest.mark.parametrize("dtype", TRAVELLING)
def test_ucc_is_trusted_with_what_was_found_right(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    assert [
        UCC.lets_reduce(x, SUM),
        UCC.lets_move(x),
        UCC.lets_gather([x, x], x),
        UCC.lets_exchange(x),
    ] == [dtype in MEASURED] * 4


def test_ucc_never_sees_half_precision() -> None:
    x = torch.ones(3, dtype=torch.float16)
    assert not UCC.lets_reduce(x, SUM)
    assert not UCC.lets_exchange(x)


def test_reductions_that_nobody_tried_stay_out() -> None:
    for reduction in (AVERAGE, BAND):
        assert not UCC.lets_reduce(torch.ones(3, dtype=torch.int32), reduction)
        assert not MPI.lets_reduce(torch.ones(3, dtype=torch.int32), reduction)


def test_uneven_gathers_stay_out() -> None:
    x = torch.ones(3)
    assert UCC.lets_gather([torch.ones(3), torch.ones(3)], x)
    assert not UCC.lets_gather([torch.ones(3), torch.ones(4)], x)


def test_what_is_empty_on_all_ranks_stays_out_and_what_may_be_so_on_some_does_not() -> None:
    x = torch.ones(0)
    assert not UCC.lets_reduce(x, SUM)
    assert not UCC.lets_move(x)
    assert UCC.lets_exchange(x)  # the decision must be the same on all ranks
