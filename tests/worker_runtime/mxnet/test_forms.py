"""Every form of every collective of arrays under Horovod's arguments; what they compute is tested with them."""

from collections.abc import Callable

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.networks import make_spoilt
from tests.worker_runtime.operations import FORMS, KINDS, NEEDED, EveryForm, call
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]
GROUPED = [form for form in FORMS if form.startswith("grouped_")]


def read(array: mx.nd.NDArray) -> list[float]:
    """As nested lists."""
    return array.asnumpy().tolist()


def call_any(form: str, array: mx.nd.NDArray, **options: object) -> mx.nd.NDArray:
    """A form with the arguments that it needs; of an alltoall the rows alone."""
    result = call(hvd, form, array, **NEEDED.get(KINDS[form], {}), **options)
    return result[0] if isinstance(result, tuple) else result


class TestForms(EveryForm):
    """The forms of each collective in worker_runtime.mxnet."""

    hvd = hvd
    make = staticmethod(mx.nd.array)
    read = staticmethod(read)
    error = mx.base.MXNetError


def test_every_error_is_caught_as_mxnets_and_by_its_own_name(ranks: RankPool) -> None:
    def body() -> None:
        x, sparse = mx.nd.ones(2), mx.nd.ones((2, 2)).tostype("csr")
        wrong = [
            (ValueError, lambda: hvd.allreduce(sparse)),
            (TypeError, lambda: hvd.allreduce("text")),
            (ValueError, lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0]))),
            (ValueError, lambda: hvd.broadcast_parameters("text")),
            (ValueError, lambda: hvd.synchronize(77)),
            (hvd.HorovodInternalError, lambda: hvd.allreduce(mx.nd.ones(hvd.rank() + 1), name="x")),
            (hvd.HorovodInternalError, lambda: hvd.synchronize(hvd.allgather_async(x, name=f"{hvd.rank()}"))),
        ]
        for kind, call_wrongly in wrong:
            with pytest.raises(mx.base.MXNetError) as caught:
                call_wrongly()
            assert isinstance(caught.value, kind)

    ranks.run(body)


@pytest.mark.parametrize("form", FORMS)
def test_a_result_has_the_dtype_context_and_kind_of_what_was_given(ranks: RankPool, form: str) -> None:
    def body() -> object:
        results = [call_any(form, mx.nd.ones((2, 1), dtype=dtype, ctx=mx.cpu(1)), priority=5) for dtype in CLASSES]
        classic = all(type(each) is mx.nd.NDArray and each.context == mx.cpu(1) for each in results)
        return [each.dtype for each in results] == CLASSES, classic, type(call_any(form, mx.np.ones((2, 1)))).__module__

    assert ranks.run(body) == [(True, True, "mxnet.numpy")] * 2


def test_an_empty_group_is_returned_and_cannot_be_begun_asynchronously(ranks: RankPool) -> None:
    def body() -> None:
        for form in GROUPED:
            empty: list[mx.nd.NDArray] = []
            if "_async" in form:
                with pytest.raises(ValueError, match="at least one"):
                    getattr(hvd, form)(empty)
            else:
                assert getattr(hvd, form)(empty) is empty

    ranks.run(body)


def test_arrays_of_a_group_may_be_of_several_shapes_and_dtypes(ranks: RankPool) -> None:
    def body() -> object:
        group = mx.nd.ones(2), mx.nd.ones((2, 1), dtype="int32") * 2
        results = [getattr(hvd, form)(group) for form in GROUPED]
        lists = [hvd.synchronize(each) if isinstance(each, int) else each for each in results]
        return all([array.dtype for array in each] == [np.float32, np.int32] for each in lists)

    assert ranks.run(body) == [True, True]


@pytest.mark.parametrize("kind", ["list", "int32", "int64"])
def test_an_alltoall_with_splits_gives_rows_and_counts_and_without_them_rows_alone(ranks: RankPool, kind: str) -> None:
    def body() -> object:
        x = mx.nd.arange(4) + 10 * hvd.rank()
        splits = [0, 4] if kind == "list" else mx.nd.array([0, 4], dtype=kind)
        rows, counts = hvd.alltoall(x, splits)
        same = hvd.synchronize(hvd.alltoall_async(x, splits, "x", 0, hvd.global_process_set))
        assert [read(each) for each in same] == [read(rows), read(counts)]
        return read(rows), read(counts), counts.dtype.__name__, read(hvd.alltoall(x))

    assert ranks.run(body) == [
        ([], [0, 0], "int32", [0, 1, 10, 11]),
        ([0, 1, 2, 3, 10, 11, 12, 13], [4, 4], "int32", [2, 3, 12, 13]),
    ]


@pytest.mark.parametrize("elements", [4, 300_000])
@pytest.mark.parametrize("form", ["allreduce_", "broadcast_"])
def test_operations_of_the_engine_before_and_after_keep_their_place(ranks: RankPool, form: str, elements: int) -> None:
    def body() -> object:
        x = mx.nd.ones(elements) * 2 * hvd.rank()
        before = x + 1
        x += 5  # still being computed
        call_any(form, x)
        x *= 2
        return np.unique(before.asnumpy()).tolist(), np.unique(x.asnumpy()).tolist()

    value = 12.0 if form == "allreduce_" else 10.0  # of the average, or of the root
    assert ranks.run(body) == [([1.0], [value]), ([3.0], [value])]


def test_the_engine_continues_after_a_disagreement(ranks: RankPool) -> None:
    def body() -> object:
        x = mx.nd.ones(2 + hvd.rank())
        y = x * 2
        handle = hvd.allreduce_async_(x, name="x")
        with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched allreduce tensor shapes"):
            hvd.synchronize(handle)
        x += y
        return x.asnumpy()[0]

    assert ranks.run(body) == [3, 3]


MISTAKES: dict[str, tuple[Callable[[], object], dict[str, object]]] = {  # what is given, and with which arguments
    "too many": (lambda: mx.nd.ones((2, 2)), {"extra": 1}),
    "numpy": (lambda: np.ones((2, 2)), {}),
    "sparse": (lambda: mx.nd.ones((2, 2)).tostype("row_sparse"), {}),
    "bool": (lambda: mx.nd.ones((2, 2)).astype("bool"), {}),
    "spoilt": (lambda: make_spoilt(2), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_fails_on_one_rank_is_refused_to_the_others_and_counts_everywhere(
    ranks: RankPool, form: str
) -> None:
    def body() -> object:
        reported = {}
        for name in ("a", None):
            for mistake, (make, options) in MISTAKES.items():
                try:
                    if hvd.rank() == 1:
                        call_any(form, make(), name=name, **options)
                    else:
                        call_any(form, mx.nd.ones((2, 2)), name=name)
                except (ValueError, TypeError, RuntimeError) as error:  # also MXNet's own
                    reported[name, mistake] = f"{type(error).__name__}: {error}"
                call_any(form, mx.nd.ones((2, 2)), name=name)
                hvd.allreduce(mx.nd.ones(1), name="loss")
        return reported

    theirs, mine = ranks.run(body)
    assert len(theirs) == len(mine) == 2 * len(MISTAKES)
    for key, cause in mine.items():
        assert f"failed on rank 1 before anything was sent: {cause}" in theirs[key]
