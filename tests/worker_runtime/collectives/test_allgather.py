"""The allgather: the rows of all ranks, in rank order, however many each has."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import describe, in_three_ways, run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.allgather import Allgather, Gathered, find_own_rows
from worker_runtime.collectives.dtypes import MOVABLE
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import PAYLOAD_BYTES

PAIR = Members(0, (0, 1), 1)


@in_three_ways
@pytest.mark.parametrize("rows", [(2, 1, 3), (0, 2, 0), (0, 0, 0), (1, 1, 1)], ids=str)
def test_uneven_parts_of_every_dtype_are_joined_in_rank_order(rows: tuple[int, ...], way: str) -> None:
    def make_part(rank: int) -> torch.Tensor:
        return (torch.arange(rows[rank] * 2 * 2).reshape(rows[rank], 2, 2) + 10 * rank) % 3 + 1

    def body(engine: ThreadEngine) -> object:
        own = make_part(engine.rank)
        single = [engine.run(Allgather([own.to(dtype)], engine.all, "allgather.x"))[0] for dtype in MOVABLE]
        grouped = engine.run(Allgather([own.to(dtype) for dtype in MOVABLE], engine.all, "allgather.x"))
        assert all(gathered.rows == rows and gathered.tensor.is_contiguous() for gathered in single + grouped)
        return [[describe(gathered.tensor) for gathered in results] for results in (single, grouped)]

    expected = torch.cat([make_part(rank) for rank in range(3)])
    for results in run(body, way=way, size=3):
        assert results == [[describe(expected.to(dtype)) for dtype in MOVABLE]] * 2


def test_views_and_rows_without_elements_are_gathered() -> None:
    def body(engine: ThreadEngine) -> object:
        base = torch.arange(6).reshape(2, 3) + 10 * engine.rank
        before = base.clone()
        view, empty, lazy = (
            engine.run(Allgather([tensor], engine.all, "allgather.x"))[0].tensor
            for tensor in (base.t(), torch.zeros(engine.rank + 1, 0), torch.tensor([1j]).conj())
        )
        assert torch.equal(base, before)
        return view.tolist(), empty.shape, lazy.tolist()

    for view, empty, lazy in run(body):
        assert view == [[0, 3], [1, 4], [2, 5], [10, 13], [11, 14], [12, 15]]
        assert empty == (3, 0)
        assert lazy == [-1j, -1j]


@pytest.mark.parametrize("count", [PAYLOAD_BYTES // 2 - 1, PAYLOAD_BYTES // 2 + 1])
def test_rows_travel_inside_the_requests_unless_those_of_a_rank_are_many(count: int) -> None:
    def body(engine: ThreadEngine) -> object:
        rows = torch.full((count if engine.rank else 1,), engine.rank, dtype=torch.uint8)
        operation = Allgather([rows, rows[:1]], engine.all, "allgather.x")
        inside = len(operation.payload)
        first, second = engine.run(operation)
        return inside, first.rows, int(first.tensor.sum()), second.tensor.tolist()

    last = count + 1
    expected = ((1, count), count, [0, 1])
    assert run(body) == [(2, *expected), (last if last <= PAYLOAD_BYTES // 2 else 0, *expected)]


def test_own_rows_lie_behind_those_of_lower_ranks() -> None:
    gathered = Gathered(torch.zeros(6), (1, 3, 2))
    assert [find_own_rows(gathered, Members(0, (4, 5, 7), rank)) for rank in (4, 5, 7)] == [(0, 1), (1, 4), (4, 6)]


def test_the_first_dimension_may_differ_and_the_others_must_agree() -> None:
    operation = Allgather([torch.zeros(4, 2, 3), torch.zeros(5)], PAIR, "allgather.x")
    assert operation.sizes == (4, 5)
    assert operation.request.signature.shapes == ((2, 3), ())
    assert not operation.request.signature.tolerates_joined
