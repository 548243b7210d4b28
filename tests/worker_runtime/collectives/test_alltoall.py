"""The alltoall: each rank's rows go where its splits say."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import describe, run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.alltoall import Alltoall
from worker_runtime.collectives.dtypes import MOVABLE
from worker_runtime.coordination.operation import Members

PAIR = Members(0, (0, 1), 1)


def test_rows_of_every_dtype_go_where_the_splits_say() -> None:
    splits = [(1, 0, 2), (0, 0, 0), (2, 3, 1)]

    def make_part(rank: int) -> torch.Tensor:
        return (torch.arange(sum(splits[rank]) * 2).reshape(-1, 2) + rank) % 3 + 1

    def body(engine: ThreadEngine) -> object:
        own, counts = make_part(engine.rank), splits[engine.rank]
        results = [engine.run(Alltoall(own.to(dtype), counts, engine.all, "alltoall.x")) for dtype in MOVABLE]
        return [describe(result.tensor) for result in results], {str(result.received_splits) for result in results}

    for rank, (described, received) in enumerate(run(body, size=3)):
        parts = [make_part(other).split(splits[other])[rank] for other in range(3)]
        assert described == [describe(torch.cat(parts).to(dtype)) for dtype in MOVABLE]
        assert received == {str(torch.tensor([other[rank] for other in splits], dtype=torch.int32))}


def test_without_splits_all_get_as_many() -> None:
    def body(engine: ThreadEngine) -> object:
        base = torch.arange(8).reshape(2, 4) + 10 * engine.rank
        tensor, splits = engine.run(Alltoall(base.t(), None, engine.all, "alltoall.x"))
        return tensor.tolist(), splits.tolist()

    low, high = [[0, 4], [1, 5], [10, 14], [11, 15]], [[2, 6], [3, 7], [12, 16], [13, 17]]
    assert run(body) == [(low, [2, 2]), (high, [2, 2])]


@pytest.mark.parametrize(
    "splits", [[1, 3], (1, 3), torch.tensor([1, 3]), torch.tensor([1, 3], dtype=torch.int32)], ids=repr
)
def test_splits_are_integers_in_any_form(splits: object) -> None:
    operation = Alltoall(torch.zeros(4, 5), splits, PAIR, "alltoall.x")
    assert operation.sizes == (1, 3)
    assert operation.request.signature.shapes == ((5,),)
