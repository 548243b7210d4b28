"""The broadcast: the root's values everywhere, and nothing else changed."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import describe, in_three_ways, run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.dtypes import MOVABLE
from worker_runtime.coordination.operation import Members

VIEWS = {
    "columns": lambda x: x[:, ::2],
    "rows": lambda x: x[::2],
    "block": lambda x: x[:, 1:3],
    "transposed": lambda x: x.t(),
    "scalar": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "all": lambda x: x,
}


@in_three_ways
@pytest.mark.parametrize("root", [0, 2])
def test_all_ranks_get_the_roots_values_of_every_dtype(root: int, way: str) -> None:
    def make_own(rank: int) -> list[torch.Tensor]:
        return [torch.full((2, 2), rank + 1).to(dtype) for dtype in MOVABLE]

    def body(engine: ThreadEngine) -> object:
        own = make_own(engine.rank)
        new = engine.run(Broadcast(own, root, engine.all, "broadcast.x"))
        assert all(one.data_ptr() != other.data_ptr() for one, other in zip(own, new, strict=True))
        return [describe(tensor) for tensor in own], [describe(tensor) for tensor in new]

    for rank, (own, new) in enumerate(run(body, way=way, size=3)):
        assert own == [describe(tensor) for tensor in make_own(rank)]
        assert new == [describe(tensor) for tensor in make_own(root)]


@in_three_ways
@pytest.mark.parametrize("together", [False, True])
def test_a_broadcast_in_place_changes_the_view_and_nothing_else(way: str, *, together: bool) -> None:
    takes = list(VIEWS.values())

    def body(engine: ThreadEngine) -> object:
        bases = [torch.full((4, 6), float(engine.rank)) for _ in takes]
        parts = [take(base) for take, base in zip(takes, bases, strict=True)]
        for group in [parts] if together else [[part] for part in parts]:
            results = engine.run(Broadcast(group, 1, engine.all, "broadcast.x", group))
            assert all(result is part for result, part in zip(results, group, strict=True))
        for take, base in zip(takes, bases, strict=True):
            expected = torch.full((4, 6), float(engine.rank))
            take(expected).fill_(1.0)
            assert torch.equal(base, expected)

    run(body, way=way)


@in_three_ways
def test_a_broadcast_fills_lazily_conjugated_tensors_parameters_and_other_tensors(way: str) -> None:
    def body(engine: ThreadEngine) -> object:
        lazy = torch.full((1,), engine.rank * (1 + 2j)).conj()
        engine.run(Broadcast([lazy], 1, engine.all, "broadcast.x", [lazy]))
        weight = torch.nn.Parameter(torch.full((2, 2), float(engine.rank)))
        engine.run(Broadcast([weight], 1, engine.all, "broadcast.x", [weight]))
        own, other = torch.full((2, 3), engine.rank), torch.zeros(3, 2, dtype=torch.int64).t()
        engine.run(Broadcast([own], 1, engine.all, "broadcast.x", [other]))
        assert own.unique().tolist() == [engine.rank]
        return lazy.tolist(), weight.requires_grad, weight.tolist(), other.tolist()

    assert run(body, way=way) == [([1 - 2j], True, [[1.0] * 2] * 2, [[1] * 3] * 2)] * 2


def test_large_tensors_are_received_right_where_they_belong() -> None:
    def body(engine: ThreadEngine) -> object:
        x = torch.full((300_000,), float(engine.rank))
        operation = Broadcast([x, torch.zeros(3)], 0, engine.all, "broadcast.x", [x, torch.zeros(3)])
        engine.run(operation)
        return operation._fused[1].data_ptr() == x.data_ptr(), x.unique().tolist()

    assert run(body) == [(True, [0.0])] * 2


def test_only_the_root_has_a_payload() -> None:
    x = torch.ones(3)
    root, other = (Broadcast([x], 0, Members(0, (0, 1), rank), "broadcast.x") for rank in (0, 1))
    assert root.request == other.request
    assert (bytes(root.payload), other.payload) == (x.numpy().tobytes(), b"")
