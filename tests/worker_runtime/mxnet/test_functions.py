"""Parameters of one rank on all ranks, where all have them; those that come later are tested with `deferred`."""

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import DTYPES

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]


def make_parameter(name: str, shape: tuple[int, ...], value: float, **options: object) -> mx.gluon.Parameter:
    """A parameter that is initialised."""
    parameter = mx.gluon.Parameter(name, shape=shape, init=mx.init.Constant(value), **options)
    parameter.initialize()
    return parameter


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("elements", [5, 100_000])
def test_arrays_of_every_dtype_become_the_roots_in_place(ranks: RankPool, root: int, elements: int) -> None:
    def body() -> object:
        params = {f"p{i}": mx.nd.ones(elements, dtype=dtype) * hvd.rank() for i, dtype in enumerate(CLASSES)}
        kept = dict(params)
        hvd.broadcast_parameters(params, root)
        assert all(params[name] is kept[name] for name in kept)
        return [np.unique((array + 1).asnumpy()).tolist() for array in params.values()]

    assert ranks.run(body) == [[[root + 1]] * len(CLASSES)] * 2


def test_parameters_of_gluon_become_the_roots_on_all_contexts(ranks: RankPool) -> None:
    def body() -> object:
        block = mx.gluon.nn.Dense(2, in_units=3)
        block.initialize(mx.init.Constant(hvd.rank()), ctx=[mx.cpu(0), mx.cpu(1)])
        frozen = make_parameter("frozen", (2,), hvd.rank(), grad_req="null")
        constant = mx.gluon.Constant("constant", [float(hvd.rank())])
        constant.initialize()
        hvd.broadcast_parameters(block.collect_params(), 1)
        hvd.broadcast_parameters({"frozen": frozen, "constant": constant}, root_rank=1)
        arrays = [*block.weight.list_data(), frozen.data(), constant.data()]
        return [array.asnumpy().ravel()[-1] for array in arrays], "_init_impl" in vars(block.weight)

    assert ranks.run(body) == [([1, 1, 1, 1], False)] * 2


def test_in_a_set_only_its_ranks_become_equal(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 2])
        array = mx.nd.ones(2) * hvd.rank()
        if some.included():
            hvd.broadcast_parameters({"p": array}, 2, None, some)
        else:
            with pytest.raises(ValueError, match="Rank 1 is not a member"):
                hvd.broadcast_parameters({"p": array}, 2, process_set=some)
        with pytest.raises(
            ValueError, match=r"invalid root rank '0' \(broadcast_parameters\); the set's ranks are 0, 1, 2"
        ):
            hvd.broadcast_parameters({"p": mx.nd.ones(1)}, root_rank="0")
        with pytest.raises(ValueError, match="received invalid root rank 7"):
            hvd.broadcast_parameters({"p": array}, 7)
        return array.asnumpy().tolist()

    assert ranks.run(body, size=3) == [[2, 2], [1, 1], [2, 2]]


def test_alone_and_without_parameters_nothing_happens(ranks: RankPool) -> None:
    def alone() -> object:
        parameter = mx.gluon.Parameter("p", shape=(0,), allow_deferred_init=True)
        hvd.broadcast_parameters({"p": parameter})
        return vars(parameter).keys() & {"_init_impl"}

    assert ranks.run(alone, size=1) == [set()]
    assert ranks.run(lambda: hvd.broadcast_parameters({})) == [None, None]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([1], "invalid params of type: list"),
        ("p", "invalid params of type: str"),
        (None, "invalid params of type: NoneType"),
        ({"p": 1}, "'p' is of type int, not a parameter or an array"),
        ({"p": mx.nd.ones(1).astype("bool")}, "broadcast_parameters: 'p': arrays of bool are not supported"),
    ],
    ids=["list", "str", "None", "int", "bool"],
)
def test_arguments_that_are_no_parameters_are_refused(ranks: RankPool, params: object, message: str) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match=message):
            hvd.broadcast_parameters(params)

    ranks.run(body)


def test_all_ranks_learn_which_parameters_differ(ranks: RankPool) -> None:
    def body() -> object:
        own = hvd.rank()
        ones = mx.nd.ones
        deferred = mx.gluon.Parameter("p", shape=(0,), allow_deferred_init=True)
        deferred.initialize()
        cases = [
            ({"a": ones(1), "b": ones(1)} if own else {"a": ones(1)}, "rank 1 has 'b' and rank 0 has not"),
            ({"a": ones(1)} if own else {"b": ones(1)}, "rank 1 has 'a' and rank 0 has not"),
            ({"a": ones(2 + own)}, r"'a' is float32 of shape \(2,\) on rank 0, and float32 of shape \(3,\) on rank 1"),
            ({"a": ones(1, dtype="int32" if own else "float32")}, r"'a' is float32 .* and int32 of shape \(1,\)"),
            ({"p": ones(1) if own else deferred}, "'p' is an array on some ranks, and not initialized on others"),
        ]
        for params, text in cases:
            with pytest.raises(ValueError, match=f"broadcast_parameters: {text}.*build the same model on all ranks"):
                hvd.broadcast_parameters(params)
        return hvd.allreduce(ones(1)).asscalar()

    assert ranks.run(body) == [1, 1]


def test_a_call_that_fails_on_one_rank_is_refused_to_the_others_and_counts_everywhere(ranks: RankPool) -> None:
    def body() -> object:
        good, own = {"a": mx.nd.ones(2)}, hvd.rank()
        spoilt = mx.nd.linalg.potrf(-mx.nd.eye(2))  # the engine finds out that there is no root
        trainer = mx.gluon.Trainer({"p": make_parameter("p", (2,), 1.0)}, "adam", kvstore=None)
        calls = [
            lambda: hvd.broadcast_parameters({"a": spoilt} if own else {"a": mx.nd.ones((2, 2))}),
            lambda: hvd.broadcast_parameters([1] if own else good),
            lambda: hvd.broadcast_parameters({"a": None} if own else good),
            lambda: hvd.broadcast_parameters({"a": mx.nd.ones((2, 1)).tostype("row_sparse")} if own else good),
            lambda: hvd.broadcast_parameters(good, 9 if own else 0, prefix="x."),
            lambda: hvd.broadcast_optimizer_state(3 if own else trainer),
            lambda: hvd.broadcast_optimizer_state(trainer, 9 if own else 0),
        ]
        text = []
        for call in calls:
            with pytest.raises((ValueError, RuntimeError)) as caught:  # also MXNet's own
                call()
            text.append(f"{type(caught.value).__name__}: {caught.value}")
            hvd.broadcast_parameters(good)
            hvd.broadcast_optimizer_state(trainer)
            assert hvd.allreduce(mx.nd.ones(1), op=hvd.Sum).asscalar() == hvd.size()
        return text

    theirs, mine = ranks.run(body)
    for cause, text in zip(mine, theirs, strict=True):
        assert f"failed on rank 1 before anything was sent: {cause}" in text
