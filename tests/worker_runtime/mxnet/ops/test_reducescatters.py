"""Reducescatter of arrays under Horovod's arguments; what it computes is tested with the collectives."""

import mxnet as mx
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]

FORMS = {
    "reducescatter": hvd.reducescatter,
    "reducescatter_async": lambda *given, **more: hvd.synchronize(hvd.reducescatter_async(*given, **more)),
    "grouped_reducescatter": lambda x, *given, **more: hvd.grouped_reducescatter([x], *given, **more)[0],
    "grouped_reducescatter_async": lambda x, *given, **more: hvd.synchronize(
        hvd.grouped_reducescatter_async([x], *given, **more)
    )[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_rank_gets_its_rows_in_every_dtype(ranks: RankPool, form: str) -> None:
    scatter = FORMS[form]

    def body() -> object:
        told = []
        for dtype in CLASSES:
            x = mx.nd.array([[1], [2], [3]], dtype=dtype) * (hvd.rank() + 1)
            result = scatter(x, hvd.Sum)
            told.append((result.dtype is dtype, result.asnumpy().ravel().tolist()))
        return told

    assert ranks.run(body) == [[(True, rows)] * len(CLASSES) for rows in ([3, 6], [9])]


@pytest.mark.parametrize("form", FORMS)
def test_arguments_in_horovods_places(ranks: RankPool, form: str) -> None:
    scatter = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([0, 1])
        x = mx.nd.ones((2, 1)) * (hvd.rank() + 1)
        if some.included():
            return scatter(x, hvd.Average, "x", 3, some, 2.0, 10.0).asnumpy().tolist()
        return None

    assert ranks.run(body, size=3) == [[[30]], [[30]], None]


def test_a_rank_may_get_no_rows(ranks: RankPool) -> None:
    def body() -> object:
        return hvd.reducescatter(mx.nd.ones((1, 4))).shape

    assert ranks.run(body) == [(1, 4), (0, 4)]


def test_another_operation_and_a_scalar_are_refused(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(hvd.HorovodInternalError, match="only supports AVERAGE and SUM"):
            hvd.reducescatter(mx.nd.ones(2), hvd.Max)
        with pytest.raises(ValueError, match="without dimensions"):
            hvd.reducescatter(mx.nd.array(5.0))
        empty = []
        return hvd.grouped_reducescatter(empty) is empty

    assert ranks.run(body) == [True, True]
