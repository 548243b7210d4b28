"""Groups beside gloo's: made, tested by all members together, and refused by all alike."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from tests.worker_runtime.backends.stubs import LIMIT, Unreduced, make_gloo_group, run_members
from worker_runtime.backends import gate
from worker_runtime.backends.errors import CanaryError
from worker_runtime.backends.gated import Connect, Gated
from worker_runtime.backends.gated_group import GatedGroup
from worker_runtime.gloo import Gloo
from worker_runtime.torch_groups import TorchGroup


def connect_real(gloo: Gloo) -> Connect:
    """A backend that works."""

    def connect(prefix: str, rank: int, size: int, limit: timedelta) -> TorchGroup:
        assert prefix == "set/-1/cpu/ucc"
        return cast("TorchGroup", make_gloo_group(gloo.store, rank, size, limit))

    return connect


def make_all(size: int, connect_of: Callable[[int, Gloo], Connect]) -> list[Any]:
    """What each member gets, with a backend that may differ by member."""

    def member(rank: int, gloo: Gloo) -> object:
        gated = Gated(gate.UCC, gloo.make, connect_of(rank, gloo), LIMIT)
        group, interruptible = gated.make("set/-1/cpu", rank, size, "cpu", LIMIT)
        x = torch.full((3,), rank + 1.0)
        group.allreduce(x, dist.ReduceOp.SUM).wait(LIMIT)
        y = torch.full((3,), rank + 1.0, dtype=torch.float16)
        group.allreduce(y, dist.ReduceOp.SUM).wait(LIMIT)
        group.barrier().wait(LIMIT)
        return type(group), interruptible is group, x.tolist(), y.tolist()

    return run_members(size, member)


def test_a_backend_that_works_is_used_beside_gloo() -> None:
    sums = [6.0] * 3
    assert make_all(3, lambda _, gloo: connect_real(gloo)) == [(GatedGroup, True, sums, sums)] * 3


def test_members_that_cannot_have_such_a_group_have_gloos() -> None:
    results = make_all(2, lambda *_: lambda *_: None)
    assert [(kind is GatedGroup, total) for kind, _, total, _ in results] == [(False, [3.0] * 3)] * 2


def test_a_wrong_result_refuses_the_backend_on_all_members() -> None:
    errors = make_all(2, lambda *_: lambda *_: cast("TorchGroup", Unreduced()))
    for error in errors:
        assert isinstance(error, CanaryError)
        assert error.positions == (0, 1)
        assert "the backend ucc failed its test on 2 of 2 members" in str(error)
        assert "an allreduce of known numbers returned" in str(error)


def test_a_fault_that_one_member_saw_refuses_it_on_all() -> None:
    def refuse(*_: object) -> TorchGroup:
        raise RuntimeError("no such device")

    errors = make_all(3, lambda rank, _: refuse if rank == 1 else lambda *_: cast("TorchGroup", Passive()))
    assert [type(error) for error in errors] == [CanaryError] * 3
    assert [error.positions for error in errors] == [(1,)] * 3
    assert "no such device" in str(errors[1])
    assert "no such device" not in str(errors[0])


class Passive(Unreduced):
    """A group that adds the canary's numbers up although nobody answers."""

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Any:  # noqa: ANN401 - as its kin
        """Say what three members would have."""
        from worker_runtime.backends import canary  # noqa: PLC0415 - its private numbers

        tensor.copy_(torch.stack([canary._make_numbers(rank) for rank in range(3)]).sum(0))
        return super().allreduce(tensor, op)


def test_members_that_do_not_come_are_an_error_within_the_limit() -> None:
    def member(rank: int, gloo: Gloo) -> object:
        gated = Gated(gate.UCC, gloo.make, lambda *_: None, LIMIT)
        return gated.make("set/-1/cpu", rank, 2, "cpu", timedelta(seconds=0.6))

    (error,) = run_members(1, member)
    assert isinstance(error, RuntimeError)
    with pytest.raises(RuntimeError):
        raise error
