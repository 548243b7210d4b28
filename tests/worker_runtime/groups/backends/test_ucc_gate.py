"""Groups beside gloo's: what goes through the gate, and how they are tested, refused and ended."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from tests.worker_runtime.groups.backends.stubs import (
    LIMIT,
    StubConnections,
    StubGroup,
    StubWork,
    Unreduced,
    make_gloo_group,
    run_members,
)
from worker_runtime.groups.backends import ucc
from worker_runtime.groups.backends.ucc import CanaryError, Connect, Gated, GatedGroup
from worker_runtime.groups.gloo import Gloo
from worker_runtime.groups.torch_groups import TorchGroup

SUM, AVERAGE, BAND = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.BAND
MEASURED = {torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64}


@pytest.mark.parametrize("dtype", [torch.float16, torch.int16, *sorted(MEASURED, key=str)])
def test_ucc_is_trusted_with_what_was_found_right(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    assert [
        ucc.lets_reduce(x, SUM),
        ucc.lets_move(x),
        ucc.lets_gather([x, x], x),
        ucc.lets_exchange(x),
    ] == [dtype in MEASURED] * 4


def test_untried_reductions_stay_out() -> None:
    for reduction in (AVERAGE, BAND):
        assert not ucc.lets_reduce(torch.ones(3, dtype=torch.int32), reduction)


def test_uneven_gathers_stay_out() -> None:
    x = torch.ones(3)
    assert ucc.lets_gather([torch.ones(3), torch.ones(3)], x)
    assert not ucc.lets_gather([torch.ones(3), torch.ones(4)], x)


def test_a_tensor_that_is_empty_on_all_ranks_stays_out_and_one_on_some_does_not() -> None:
    x = torch.ones(0)
    assert not ucc.lets_reduce(x, SUM)
    assert not ucc.lets_move(x)
    assert ucc.lets_exchange(x)  # the decision must be the same on all ranks


class Passive(Unreduced):
    """A group that adds the canary's numbers of all members up although no rank answers; the last may be wrong."""

    def __init__(self, size: int, error: float = 0.0) -> None:
        self._total = torch.stack([ucc._make_numbers(rank) for rank in range(size)]).sum(0)
        self._total[-1] += error

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> StubWork:
        """Say what they would have."""
        return super().allreduce(tensor.copy_(self._total), op)


def connect_real(gloo: Gloo) -> Connect:
    """A backend that works."""

    def connect(prefix: str, rank: int, size: int, limit: timedelta) -> TorchGroup:
        assert prefix == "set/-1/cpu/ucc"
        return cast("TorchGroup", make_gloo_group(gloo.store, rank, size, limit))

    return connect


def make_all(size: int, connect_of: Callable[[int, Gloo], Connect]) -> list[Any]:
    """What each member gets, with a backend that may differ by member."""

    def member(rank: int, gloo: Gloo) -> object:
        gated = Gated(gloo.make, connect_of(rank, gloo), LIMIT)
        group, interruptible = gated.make("set/-1/cpu", rank, size, "cpu", LIMIT)
        x = torch.full((3,), rank + 1.0)
        group.allreduce(x, dist.ReduceOp.SUM).wait(LIMIT)
        y = torch.full((3,), rank + 1.0, dtype=torch.float16)
        group.allreduce(y, dist.ReduceOp.SUM).wait(LIMIT)
        return type(group), interruptible is group, x.tolist(), y.tolist()

    return run_members(size, member)


def test_a_backend_that_works_is_used_beside_gloo() -> None:
    sums = [6.0] * 3
    assert make_all(3, lambda _, gloo: connect_real(gloo)) == [(GatedGroup, True, sums, sums)] * 3


def test_a_wrong_result_refuses_the_backend_on_all_members() -> None:
    errors = make_all(2, lambda *_: lambda *_: cast("TorchGroup", Unreduced()))
    for error in errors:
        assert isinstance(error, CanaryError)
        assert "the backend ucc failed its test on 2 of 2 members" in str(error)
        assert "an allreduce of known numbers returned" in str(error)


def test_a_fault_that_one_member_saw_refuses_it_on_all() -> None:
    def refuse(*_: object) -> TorchGroup:
        raise RuntimeError("no such device")

    errors = make_all(3, lambda rank, _: refuse if rank == 1 else lambda *_: cast("TorchGroup", Passive(3)))
    assert [type(error) for error in errors] == [CanaryError] * 3
    assert all("on 1 of 3 members (the first is member 1)" in str(error) for error in errors)
    assert "no such device" in str(errors[1])
    assert "no such device" not in str(errors[0])


def test_members_that_do_not_come_are_an_error_within_the_limit() -> None:
    def member(rank: int, gloo: Gloo) -> object:
        gated = Gated(gloo.make, lambda *_: cast("TorchGroup", Unreduced()), LIMIT)
        return gated.make("set/-1/cpu", rank, 2, "cpu", timedelta(seconds=0.6))

    (error,) = run_members(1, member)
    assert isinstance(error, RuntimeError)
    with pytest.raises(RuntimeError):
        raise error


TRUSTED, OTHER = torch.ones(2), torch.ones(2, dtype=torch.float16)
CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "allreduce": lambda group, x: group.allreduce(x, dist.ReduceOp.SUM),
    "broadcast": lambda group, x: group.broadcast(x, 0),
    "allgather": lambda group, x: group.allgather([x.clone(), x.clone()], x),
    "alltoall_base": lambda group, x: group.alltoall_base(x.clone(), x, [1, 1], [1, 1]),
}


def make(inside: object, outside: StubGroup, connections: StubConnections | None = None) -> GatedGroup:
    return GatedGroup(cast("Any", inside), cast("Any", outside), connections or StubConnections(), LIMIT)


@pytest.mark.parametrize("name", CALLS)
def test_the_gate_decides_which_backend_runs_a_call(name: str) -> None:
    inside, outside = StubGroup(), StubGroup()
    group = make(inside, outside)
    assert CALLS[name](group, TRUSTED).wait(LIMIT)
    assert (inside.names, outside.names) == ([name], [])
    assert CALLS[name](group, OTHER) is outside.work
    assert (inside.names, outside.names) == ([name], [name])


def test_the_time_limit_is_gloos() -> None:
    inside, outside = StubGroup(StubWork(is_ended=False)), StubGroup()
    group = make(inside, outside)
    group._set_default_timeout(timedelta(milliseconds=5))
    assert (inside.names, outside.names) == ([], ["_set_default_timeout"])
    with pytest.raises(RuntimeError, match=r"within 0\.005 s"):
        CALLS["allreduce"](group, TRUSTED).wait()


def test_an_interruption_ends_the_works_of_ucc_and_of_gloo() -> None:
    connections = StubConnections()
    group = make(StubGroup(StubWork(is_ended=False)), StubGroup(), connections)
    work = CALLS["allreduce"](group, TRUSTED)
    group.shut_down()
    group.shut_down()
    assert connections.ends == 2
    with pytest.raises(RuntimeError, match="interrupted"):
        work.wait(LIMIT)


def test_both_groups_are_ended() -> None:
    inside, outside = StubGroup(), StubGroup()
    group = make(inside, outside)
    CALLS["broadcast"](group, TRUSTED)
    group.shutdown()
    assert (inside.names, outside.names) == (["broadcast", "shutdown"], ["shutdown"])


def test_a_backend_without_a_shutdown_ends_with_its_last_reference() -> None:
    outside = StubGroup()
    make(Unreduced(), outside).shutdown()
    assert outside.names == ["shutdown"]


def test_a_backend_that_is_at_work_is_neither_ended_nor_destroyed() -> None:
    destroyed: list[str] = []

    class Mortal(StubGroup):
        def __del__(self) -> None:
            destroyed.append("inside")

    inside, outside = Mortal(StubWork(is_ended=False)), StubGroup()
    group = make(inside, outside)
    CALLS["allreduce"](group, TRUSTED)
    calls = inside.calls
    del inside
    group.shut_down()
    group.shutdown()
    del group
    assert (destroyed, [name for name, *_ in calls], outside.names) == ([], ["allreduce"], ["shutdown"])


def test_one_wrong_element_is_a_fault() -> None:
    assert "known numbers" in ucc.find_fault(cast("Any", Passive(2, error=1.0)), 0, 2, LIMIT)


def test_an_error_is_a_fault() -> None:
    group = StubGroup(StubWork(error="it broke"))
    assert ucc.find_fault(cast("Any", group), 0, 2, LIMIT) == "it broke"


def test_thousands_of_ranks_add_up_exactly() -> None:
    total = torch.stack([ucc._make_numbers(rank) for rank in range(4096)]).to(torch.float64).sum(0)
    assert total.max() < 1 << 24
    assert torch.equal(total, total.to(torch.float32).to(torch.float64))
