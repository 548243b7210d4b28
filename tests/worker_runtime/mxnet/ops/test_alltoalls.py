"""Alltoall of arrays under Horovod's arguments; what it does is tested with the collectives."""

import mxnet as mx
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]


def test_without_splits_each_rank_gets_as_many_rows(ranks: RankPool) -> None:
    def body() -> object:
        told = []
        for dtype in CLASSES:
            received = hvd.alltoall(mx.nd.array([[0], [1]], dtype=dtype) + hvd.rank() * 10)
            told.append((received.dtype is dtype, received.asnumpy().ravel().tolist()))
        return told

    assert ranks.run(body) == [[(True, [rank, 10 + rank])] * len(CLASSES) for rank in range(2)]


@pytest.mark.parametrize("kind", ["list", "int32", "int64"])
def test_with_splits_they_come_back_too(ranks: RankPool, kind: str) -> None:
    def body() -> object:
        splits = [1, 3] if kind == "list" else mx.nd.array([1, 3], dtype=kind)
        given = mx.nd.ones((4, 2)) * hvd.rank()
        received, counts = hvd.alltoall(given, splits)
        again, counts_again = hvd.synchronize(hvd.alltoall_async(given, splits, "x", 0, hvd.global_process_set))
        assert again.asnumpy().tolist() == received.asnumpy().tolist()
        assert counts.asnumpy().tolist() == counts_again.asnumpy().tolist()
        return received.asnumpy()[:, 0].tolist(), counts.asnumpy().tolist(), counts.dtype.__name__

    assert ranks.run(body) == [([0, 1], [1, 1], "int32"), ([0, 0, 0, 1, 1, 1], [3, 3], "int32")]


def test_a_rank_may_get_nothing(ranks: RankPool) -> None:
    def body() -> object:
        received, counts = hvd.alltoall(mx.nd.ones((2, 3)), [0, 2])
        return received.shape, counts.asnumpy().tolist()

    assert ranks.run(body) == [((0, 3), [0, 0]), ((4, 3), [2, 2])]


@pytest.mark.parametrize("splits", [[1], [1, 4], [1, 1], [-1, 4], mx.nd.array([1, 2])], ids=str)
def test_splits_that_do_not_fit_are_refused(ranks: RankPool, splits: object) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(mx.nd.ones((3, 1)), splits)

    ranks.run(body)
