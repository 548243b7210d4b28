"""Broadcast of arrays under Horovod's arguments; what it does is tested with the collectives."""

import mxnet as mx
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]

FORMS = {
    "broadcast": hvd.broadcast,
    "broadcast_": hvd.broadcast_,
    "broadcast_async": lambda *given, **more: hvd.synchronize(hvd.broadcast_async(*given, **more)),
    "broadcast_async_": lambda *given, **more: hvd.synchronize(hvd.broadcast_async_(*given, **more)),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_root_is_a_rank_of_the_job_also_in_a_set(ranks: RankPool, form: str) -> None:
    cast = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([1, 2])
        told = []
        for dtype in CLASSES:
            x = mx.nd.ones((2, 2), dtype=dtype) * hvd.rank()
            result = cast(x, 1)
            told.append((result.asnumpy()[0, 0], x.asnumpy()[1, 1], result is x, result.dtype is dtype))
        y = mx.nd.ones(2) * hvd.rank()
        among_two = cast(y, 2, "some", 0, some).asnumpy().tolist() if some.included() else None
        return told, among_two

    is_in_place = form.endswith("_")
    assert ranks.run(body, size=3) == [
        ([(1, 1 if is_in_place else rank, is_in_place, True)] * len(CLASSES), [2, 2] if rank else None)
        for rank in range(3)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_root_that_is_not_there_is_an_error(ranks: RankPool, form: str) -> None:
    cast = FORMS[form]

    def body() -> None:
        with pytest.raises(ValueError, match="broadcast received invalid root rank 9"):
            cast(mx.nd.ones(1), 9)

    ranks.run(body)


@pytest.mark.parametrize("elements", [4, 300_000])
def test_what_the_engine_does_before_and_after_keeps_its_place(ranks: RankPool, elements: int) -> None:
    def body() -> object:
        x = mx.nd.ones(elements) * hvd.rank()
        before = x + 1
        x += 5
        hvd.broadcast_(x, 1)
        x *= 2
        return before.asnumpy()[-1], x.asnumpy()[-1]

    assert ranks.run(body) == [(1, 12), (2, 12)]
