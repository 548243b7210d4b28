"""Allgather of arrays under Horovod's arguments; what it does is tested with the collectives."""

import mxnet as mx
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]

FORMS = {
    "allgather": hvd.allgather,
    "allgather_async": lambda *given, **more: hvd.synchronize(hvd.allgather_async(*given, **more)),
    "grouped_allgather": lambda x, *given, **more: hvd.grouped_allgather([x], *given, **more)[0],
    "grouped_allgather_async": lambda x, *given, **more: hvd.synchronize(
        hvd.grouped_allgather_async([x], *given, **more)
    )[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_all_ranks_in_their_order(ranks: RankPool, form: str) -> None:
    gather = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([0, 2])
        told = []
        for dtype in CLASSES:
            gathered = gather(mx.nd.ones((hvd.rank() + 1, 2), dtype=dtype) * hvd.rank())
            told.append((gathered.dtype is dtype, gathered.asnumpy()[:, 1].tolist()))
        x = mx.nd.ones((1, 1), ctx=mx.cpu(1)) * hvd.rank()
        if not some.included():
            return told, None
        among_two = gather(x, "some", 0, some)
        return told, (str(among_two.context), among_two.asnumpy().ravel().tolist())

    rows = [(True, [0, 1, 1, 2, 2, 2])] * len(CLASSES)
    assert ranks.run(body, size=3) == [(rows, None if rank == 1 else ("cpu(1)", [0, 2])) for rank in range(3)]


@pytest.mark.parametrize("form", FORMS)
def test_some_and_all_may_give_no_rows(ranks: RankPool, form: str) -> None:
    gather = FORMS[form]

    def body() -> object:
        with mx.util.np_shape(active=True):
            nothing = mx.nd.ones((0, 3))
        some = gather(nothing if hvd.rank() else mx.nd.ones((2, 3)))
        return some.shape, gather(nothing).shape

    assert ranks.run(body) == [((2, 3), (0, 3))] * 2


def test_a_group_of_none_is_given_back(ranks: RankPool) -> None:
    def body() -> object:
        empty = []
        with pytest.raises(ValueError, match="at least one"):
            hvd.grouped_allgather_async(empty)
        with pytest.raises(ValueError, match="without dimensions"):
            hvd.allgather(mx.nd.array(5.0))
        return hvd.grouped_allgather(empty) is empty

    assert ranks.run(body) == [True, True]
