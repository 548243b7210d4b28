"""One group of two: what goes through the gate, what around it, and how both end."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from tests.worker_runtime.backends.stubs import LIMIT, StubConnections, StubGroup, StubWork, Unreduced
from worker_runtime.backends import gate
from worker_runtime.backends.gated_group import GatedGroup

TRUSTED, OTHER = torch.ones(2), torch.ones(2, dtype=torch.float16)
CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "allreduce": lambda group, x: group.allreduce(x, dist.ReduceOp.SUM),
    "broadcast": lambda group, x: group.broadcast(x, 0),
    "allgather": lambda group, x: group.allgather([x.clone(), x.clone()], x),
    "alltoall_base": lambda group, x: group.alltoall_base(x.clone(), x, [1, 1], [1, 1]),
}


def make(inside: object, outside: StubGroup, connections: StubConnections | None = None) -> GatedGroup:
    return GatedGroup(cast("Any", inside), cast("Any", outside), gate.UCC, connections or StubConnections(), LIMIT)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_goes_where_the_gate_says(name: str) -> None:
    inside, outside = StubGroup(), StubGroup()
    group = make(inside, outside)
    assert CALLS[name](group, TRUSTED).wait(LIMIT)
    assert (inside.names, outside.names) == ([name], [])
    assert CALLS[name](group, OTHER) is outside.work
    assert (inside.names, outside.names) == ([name], [name])


def test_a_barrier_and_the_time_limit_are_gloos() -> None:
    inside, outside = StubGroup(StubWork(is_ended=False)), StubGroup()
    group = make(inside, outside)
    group.barrier()
    group._set_default_timeout(timedelta(milliseconds=5))
    assert (inside.names, outside.names) == ([], ["barrier", "_set_default_timeout"])
    with pytest.raises(RuntimeError, match=r"within 0\.005 s"):
        CALLS["allreduce"](group, TRUSTED).wait()


def test_an_interruption_reaches_both() -> None:
    connections = StubConnections()
    group = make(StubGroup(StubWork(is_ended=False)), StubGroup(), connections)
    work = CALLS["allreduce"](group, TRUSTED)
    group.shut_down()
    group.shut_down()
    assert connections.ends == 2
    with pytest.raises(RuntimeError, match="interrupted"):
        work.wait(LIMIT)


def test_both_are_ended() -> None:
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
    destroyed: list[float] = []

    class Mortal(StubGroup):
        def __del__(self) -> None:
            destroyed.append(time.monotonic())

    inside, outside = Mortal(StubWork(is_ended=False)), StubGroup()
    group = make(inside, outside)
    CALLS["allreduce"](group, TRUSTED)
    calls = inside.calls
    del inside
    group.shut_down()
    group.shutdown()
    del group
    assert (destroyed, [name for name, *_ in calls], outside.names) == ([], ["allreduce"], ["shutdown"])
