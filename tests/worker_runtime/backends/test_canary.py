"""The test of a group finds what raises nothing."""

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from tests.worker_runtime.backends.stubs import LIMIT, StubGroup, StubWork, Unreduced, run_members
from worker_runtime.backends import canary
from worker_runtime.gloo import Gloo


class OneWrong:
    """A group whose allreduce is right but for one element."""

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> StubWork:
        """Of two members that both have these numbers."""
        del op
        tensor.copy_(torch.stack([canary._make_numbers(rank) for rank in range(2)]).sum(0))
        tensor[-1] += 1
        return StubWork()


@pytest.mark.parametrize("size", [2, 3])
def test_a_group_that_adds_up_has_no_fault(size: int) -> None:
    def member(rank: int, gloo: Gloo) -> str:
        group, _ = gloo.make("canary", rank, size, "cpu", LIMIT)
        return canary.find_fault(group, rank, size, LIMIT)

    assert run_members(size, member) == [""] * size


@pytest.mark.parametrize("rank", [0, 1])
def test_an_input_that_comes_back_unreduced_is_a_fault(rank: int) -> None:
    fault = canary.find_fault(cast("Any", Unreduced()), rank, 2, LIMIT)
    assert fault.startswith("an allreduce of known numbers returned ")
    assert " where their sum is " in fault


def test_one_wrong_element_is_a_fault() -> None:
    assert "known numbers" in canary.find_fault(cast("Any", OneWrong()), 0, 2, LIMIT)


def test_an_error_is_a_fault() -> None:
    group = StubGroup(StubWork(error="it broke"))
    assert canary.find_fault(cast("Any", group), 0, 2, LIMIT) == "it broke"


def test_thousands_of_ranks_add_up_exactly() -> None:
    total = torch.stack([canary._make_numbers(rank) for rank in range(4096)]).to(torch.float64).sum(0)
    assert total.max() < 1 << 24
    assert torch.equal(total, total.to(torch.float32).to(torch.float64))
