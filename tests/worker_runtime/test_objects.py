"""Python objects travel whole, whatever they are."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


@pytest.mark.parametrize("root", [0, 2])
def test_a_broadcast_object_is_the_roots(ranks: RankPool, root: int) -> None:
    def body() -> object:
        own = {"rank": hvd.rank(), "square": lambda x: x * x, "none": None, "tensor": torch.ones(2)}
        received = hvd.broadcast_object(own, root_rank=root)
        return received["rank"], received["square"](3), received["tensor"].tolist(), received is own

    expected = [(root, 9, [1.0, 1.0], rank == root) for rank in range(3)]
    assert ranks.run(body, size=3) == expected


def test_objects_of_any_size_are_gathered_in_rank_order(ranks: RankPool) -> None:
    def body() -> object:
        return hvd.allgather_object("x" * 1000 * hvd.rank())

    for gathered in ranks.run(body, size=3):
        assert gathered == ["", "x" * 1000, "x" * 2000]


def test_a_world_of_one_gathers_a_copy(ranks: RankPool) -> None:
    def body() -> object:
        own = [1]
        gathered = hvd.allgather_object(own)
        return gathered, gathered[0] is own, hvd.broadcast_object(own) is own

    assert ranks.run(body, size=1) == [([[1]], False, True)]


def test_a_root_that_is_no_rank_is_refused(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="invalid root rank 2"):
            hvd.broadcast_object(1, root_rank=2)
        return hvd.allgather_object(hvd.rank())

    assert ranks.run(body) == [[0, 1]] * 2
