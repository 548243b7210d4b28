"""Allreduce of arrays under Horovod's arguments; what it computes is tested with the collectives."""

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]

FORMS = {
    "allreduce": hvd.allreduce,
    "allreduce_": hvd.allreduce_,
    "allreduce_async": lambda *given, **more: hvd.synchronize(hvd.allreduce_async(*given, **more)),
    "allreduce_async_": lambda *given, **more: hvd.synchronize(hvd.allreduce_async_(*given, **more)),
    "grouped_allreduce": lambda x, *given, **more: hvd.grouped_allreduce([x], *given, **more)[0],
    "grouped_allreduce_": lambda x, *given, **more: hvd.grouped_allreduce_([x], *given, **more)[0],
    "grouped_allreduce_async": lambda x, *given, **more: hvd.synchronize(
        hvd.grouped_allreduce_async([x], *given, **more)
    )[0],
    "grouped_allreduce_async_": lambda x, *given, **more: hvd.synchronize(
        hvd.grouped_allreduce_async_([x], *given, **more)
    )[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_and_dtype(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        told = []
        for dtype in CLASSES:
            x = mx.nd.array([[1, 2], [3, 4]], dtype=dtype) * (hvd.rank() + 1)
            result = reduce(x, op=hvd.Sum)
            after = result * 2
            told.append((result.dtype is dtype, result is x, after.asnumpy().tolist(), x.asnumpy()[0, 0]))
        return told

    is_in_place = form.endswith("_")
    result = [[6, 12], [18, 24]]
    expected = [[(True, is_in_place, result, 3 if is_in_place else rank + 1)] * len(CLASSES) for rank in range(2)]
    assert ranks.run(body) == expected


@pytest.mark.parametrize("form", FORMS)
def test_arguments_in_horovods_places(ranks: RankPool, form: str) -> None:
    reduce = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([1, 2])
        x = mx.nd.ones(3) * (hvd.rank() + 1)
        if some.included():
            return reduce(x, None, "x", 5, 2.0, 10.0, some, hvd.Sum).asnumpy().tolist()
        with pytest.raises(ValueError, match="Rank 0 is not a member"):
            reduce(x, None, "x", 5, 2.0, 10.0, some, hvd.Sum)
        return None

    assert ranks.run(body, size=3) == [None, [100] * 3, [100] * 3]


@pytest.mark.parametrize("elements", [8, 300_000])
def test_each_operation_small_and_large(ranks: RankPool, elements: int) -> None:
    def body() -> object:
        x = mx.nd.ones(elements) * (2 + hvd.rank())
        ops = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum)
        return [np.unique(hvd.allreduce(x, op=op).asnumpy()).round(4).tolist() for op in ops]

    parallel = [2.5]  # the average of parallel vectors
    assert ranks.run(body) == [[[2.5], [5], [2], [3], [6], parallel]] * 2


def test_the_old_argument_warns_and_names_the_callers_line(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.warns(DeprecationWarning, match="average is deprecated") as caught:
            total = hvd.allreduce(mx.nd.ones(1), average=False)
        return total.asscalar(), caught[0].filename == body.__code__.co_filename

    assert ranks.run(body) == [(2, True)] * 2


def test_large_gradients_are_reduced_where_they_lie_while_the_engine_computes(ranks: RankPool) -> None:
    def body() -> object:
        x = mx.nd.ones((400, 1000))
        x.attach_grad()
        with mx.autograd.record():
            loss = (x * x * (hvd.rank() + 1)).sum()
        loss.backward()
        x.grad[:] = x.grad + 1  # still being computed
        hvd.allreduce_(x.grad, op=hvd.Sum)
        x -= x.grad
        return np.unique(x.asnumpy()).tolist()

    assert ranks.run(body) == [[-7.0]] * 2


def test_contexts_shapes_and_kinds_are_kept(ranks: RankPool) -> None:
    def body() -> object:
        one = hvd.allreduce(mx.nd.ones((2, 1), ctx=mx.cpu(hvd.local_rank())))
        two = hvd.allreduce(mx.np.ones((1, 2)))
        three = hvd.allreduce(mx.nd.array(5.0))
        with mx.util.np_shape(active=True):
            nothing = mx.nd.ones((0, 2))
        nothing = hvd.allreduce_(nothing)
        return str(one.context), one.shape, type(two).__module__, two.shape, three.shape, nothing.shape

    assert ranks.run(body) == [(f"cpu({rank})", (2, 1), "mxnet.numpy", (1, 2), (), (0, 2)) for rank in range(2)]


def test_a_group_may_be_of_several_dtypes_and_none_at_all(ranks: RankPool) -> None:
    def body() -> object:
        x, y = mx.nd.ones(2) * hvd.rank(), mx.nd.ones(3, dtype="int32") * 2
        results = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        same = hvd.grouped_allreduce_((x, y), op=hvd.Max)
        empty = []
        assert hvd.grouped_allreduce(empty) is hvd.grouped_allreduce_(empty) is empty
        return [each.asnumpy().tolist() for each in (*results, *same)]

    assert ranks.run(body) == [[[1, 1], [4, 4, 4], [1, 1], [2, 2, 2]]] * 2


def test_what_cannot_be_reduced_is_refused_before_anything_is_sent(ranks: RankPool) -> None:
    def body() -> object:
        for wrong, error in ((mx.nd.ones(1).astype("bool"), ValueError), ([1.0], TypeError)):
            with pytest.raises(error, match=r"bool|list"):
                hvd.allreduce(wrong, name="x")
        with pytest.raises(ValueError, match="no adasum"):
            hvd.allreduce(mx.nd.ones(1, dtype="int32"), op=hvd.Adasum, name="x")
        return hvd.allreduce(mx.nd.ones(1), name="x").asscalar()

    assert ranks.run(body) == [1, 1]


def test_alone_it_scales(ranks: RankPool) -> None:
    def body() -> object:
        x = mx.nd.ones(2)
        return hvd.allreduce(x, prescale_factor=3.0).asnumpy().tolist(), x.asnumpy().tolist()

    assert ranks.run(body, size=1) == [([3, 3], [1, 1])]
