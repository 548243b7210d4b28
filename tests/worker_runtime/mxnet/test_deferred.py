"""Parameters that some rank has not initialised yet: broadcast when they are, and not before."""

import copy
import pickle

import mxnet as mx
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.networks import are_equal, fill, forward, make_network, make_spoilt, read
from tests.worker_runtime.ranks import RankPool

HOOKS = {"_init_impl", "_check_and_get", "__getstate__"}


def find_hooks(network: mx.gluon.Block) -> set[str]:
    """What is replaced in its parameters after all of them were looked at."""
    for parameter in network.collect_params().values():
        parameter.list_data()
    return {name for parameter in network.collect_params().values() for name in HOOKS & vars(parameter).keys()}


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("root", [0, 1])
def test_workers_with_different_seeds_end_equal(ranks: RankPool, root: int, hybridize: bool) -> None:
    def body() -> object:
        network, reference = make_network(hvd.rank()), make_network(root)
        if hybridize:
            network.hybridize()
        hvd.broadcast_parameters(network.collect_params(), root)
        mx.random.seed(root)  # of which the deferred draw
        output = forward(network)
        mx.random.seed(root)
        expected = forward(reference)
        return are_equal(read(network)), output.asnumpy().tolist() == expected.asnumpy().tolist()

    assert ranks.run(body, size=3) == [(True, True)] * 3


def test_deferred_parameters_are_broadcast_each_time_that_they_are_initialised(ranks: RankPool) -> None:
    def body() -> object:
        network = make_network(hvd.rank())
        hvd.broadcast_parameters(network.collect_params())
        reported = []
        for seed in range(3):
            forward(network)
            reported.append(are_equal(read(network)))
            mx.random.seed(100 * seed + hvd.rank())
            network.initialize(mx.init.Normal(1.0), force_reinit=True)
        return reported, are_equal(read(network)), len(set(map(str, read(network).values())))

    reported = ranks.run(body)
    assert reported == [([True] * 3, True, reported[0][2])] * 2
    assert reported[0][2] > 2


def test_a_restored_root_continues_and_the_others_get_the_values_of_its_call(ranks: RankPool) -> None:
    def body() -> object:
        is_root = hvd.rank() == 0
        network = make_network(hvd.rank(), inputs=6 if is_root else 0)
        if is_root:
            fill(network, 2.0)
        hvd.broadcast_parameters(network.collect_params())
        if is_root:
            forward(network).wait_to_read()
            fill(network, 3.0)  # trains on
            before = read(network)
        hvd.barrier()  # which the root reaches although no rank has requested its parameters yet
        if not is_root:
            forward(network)
            before = read(network)
        values = {value for values in before.values() for value in values}
        hvd.barrier()
        return values, find_hooks(network)

    hooked = {"_init_impl", "__getstate__"}  # not the hook that waits for the parameters
    assert ranks.run(body) == [({3.0}, hooked), ({2.0}, hooked)]


def test_large_parameters_have_the_values_of_the_broadcast_call(ranks: RankPool) -> None:
    def body() -> object:
        is_root = hvd.rank() == 0
        parameter = mx.gluon.Parameter("p", shape=(3 if is_root else 0, 100_000), allow_deferred_init=True)
        parameter.initialize(mx.init.Constant(2.0))
        hvd.broadcast_parameters({"p": parameter})
        if is_root:
            parameter.set_data(mx.nd.full(parameter.shape, 3.0))
            parameter.data().wait_to_read()
        hvd.barrier()
        parameter.shape = (3, 100_000)
        parameter._finish_deferred_init()
        return set(parameter.data().asnumpy().ravel().tolist()), hvd.barrier()

    assert ranks.run(body) == [({3.0}, None), ({2.0}, None)]


def test_a_root_that_restores_after_the_broadcast_call_sends_the_restored_values(
    ranks: RankPool, tmp_path: object
) -> None:
    file = f"{tmp_path}/saved.params"
    saved = make_network(7, inputs=6)
    fill(saved, 5.0)
    saved.save_parameters(file)

    def body() -> object:
        network = make_network(hvd.rank())
        hvd.broadcast_parameters(network.collect_params())
        if hvd.rank() == 0:
            network.load_parameters(file)
        forward(network)
        hvd.barrier()
        return set(read(network)["net_dense0_weight"])

    assert ranks.run(body) == [{5.0}] * 2


def test_a_rank_between_continues_until_it_reads_its_parameters(ranks: RankPool) -> None:
    def body() -> object:
        network = make_network(hvd.rank(), inputs=0 if hvd.rank() == 2 else 6)
        hvd.broadcast_parameters(network.collect_params())
        hvd.barrier()
        forward(network)
        hvd.barrier()
        return are_equal(read(network)), find_hooks(network) == {"_init_impl", "__getstate__"}

    assert ranks.run(body, size=3) == [(True, True)] * 3


def test_the_values_of_the_last_broadcast_call_count(ranks: RankPool) -> None:
    def body() -> object:
        is_root = hvd.rank() == 0
        network = make_network(hvd.rank(), inputs=6 if is_root else 0)
        for value in (1.0, 2.0, 3.0):
            if is_root:
                fill(network, value)
            hvd.broadcast_parameters(network.collect_params())
        hvd.broadcast_parameters(network.collect_params(), prefix="other.")
        forward(network)
        hvd.barrier()
        return {value for values in read(network).values() for value in values}

    assert ranks.run(body) == [{3.0}] * 2


def test_two_models_of_the_same_names_are_kept_apart_by_prefixes(ranks: RankPool) -> None:
    def body() -> object:
        first, second = make_network(hvd.rank()), make_network(10 + hvd.rank())
        hvd.broadcast_parameters(first.collect_params(), prefix="first.")
        hvd.broadcast_parameters(second.collect_params(), prefix="second.")
        order = (first, second) if hvd.rank() else (second, first)
        outputs = [forward(network) for network in order]
        del outputs
        return are_equal(read(first)), are_equal(read(second)), read(first) != read(second)

    assert ranks.run(body) == [(True, True, True)] * 2


def test_all_contexts_and_casts_get_the_values(ranks: RankPool) -> None:
    def body() -> object:
        contexts = [mx.cpu(0), mx.cpu(1)]
        network = make_network(hvd.rank(), contexts=contexts)
        hvd.broadcast_parameters(network.collect_params())
        with mx.autograd.record():
            for context in contexts:
                network(mx.nd.ones((2, 6), ctx=context))
        weights = network[0].weight.list_data()
        late = make_network(hvd.rank(), inputs=6 if hvd.rank() == 0 else 0)
        hvd.broadcast_parameters(late.collect_params(), prefix="late.")
        if hvd.rank() == 1:
            late[0].weight.shape = (4, 6)
            late[0].weight._finish_deferred_init()
            late[0].weight.cast("float64")  # before the values have come
        cast = late[0].weight.data()
        return (
            are_equal({"0": weights[0].asnumpy(), "1": weights[1].asnumpy()}),
            are_equal({"": cast.asnumpy().astype("float32")}),
            cast.dtype.__name__,
        )

    assert ranks.run(body) == [(True, True, "float32"), (True, True, "float64")]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])  # noqa: S301 - our own
def test_copies_are_parameters_as_mxnet_makes_them(ranks: RankPool, duplicate: object) -> None:
    def body() -> object:
        network = make_network(hvd.rank(), inputs=6 if hvd.rank() == 0 else 0)
        hvd.broadcast_parameters(network.collect_params())
        early = duplicate(network[0].weight)
        if hvd.rank() == 1:
            early.shape = (4, 6)
            early._finish_deferred_init()  # alone: no rank is waited for
            assert network[0].weight._data is None
        forward(network)
        late = duplicate(network[0].weight)
        hooks = [HOOKS.intersection(vars(each)) for each in (early, late)]
        return hooks, type(late) is type(early) is mx.gluon.Parameter, are_equal({"": late.data().asnumpy()})

    assert ranks.run(body) == [([set(), set()], True, True)] * 2


def test_a_disagreement_of_the_ranks_is_raised_where_the_parameter_is_used(ranks: RankPool) -> None:
    def body() -> object:
        network = make_network(hvd.rank(), outputs=3 + hvd.rank())
        hvd.broadcast_parameters(network.collect_params())
        if hvd.rank() == 1:
            with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched broadcast .*net_dense1_weight"):
                forward(network)
            hvd.barrier()
        else:
            forward(network).wait_to_read()
            hvd.barrier()
            with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched broadcast .*net_dense1_weight"):
                read(network)
        return hvd.allreduce(mx.nd.ones(1)).asscalar()

    assert ranks.run(body) == [1, 1]


def test_after_shutdown_a_parameter_is_its_ranks_own(ranks: RankPool) -> None:
    def body() -> object:
        is_root = hvd.rank() == 0
        network = make_network(hvd.rank(), inputs=6 if is_root else 0)
        never = make_network(hvd.rank(), inputs=6 if is_root else 0)
        hvd.broadcast_parameters(network.collect_params())
        hvd.broadcast_parameters(never.collect_params(), prefix="never.")
        forward(network)
        hvd.barrier()
        hvd.shutdown()  # with the root's broadcasts of what is never used pending
        forward(never).wait_to_read()
        network.initialize(force_reinit=True)
        return forward(network).shape, find_hooks(never) - {"_init_impl", "__getstate__"}

    assert ranks.run(body) == [((2, 3), set())] * 2


def make_dense(value: float) -> mx.gluon.nn.Dense:
    """One weight of that value, deferred until the first forward."""
    dense = mx.gluon.nn.Dense(1, use_bias=False, prefix="d_")
    dense.initialize(mx.init.Constant(value))
    return dense


@pytest.mark.parametrize("roots", [(0, 1), (1, 0), (0, 1, 0)], ids=str)
@pytest.mark.parametrize("restored", [None, 0, 1])
def test_broadcasts_from_several_roots_take_place_in_their_order(
    ranks: RankPool, roots: tuple[int, ...], restored: int | None
) -> None:
    def body() -> object:
        dense = make_dense(hvd.rank() + 1.0)
        if hvd.rank() == restored:
            dense(mx.nd.ones((1, 1)))
        for root in roots:
            hvd.broadcast_parameters(dense.collect_params(), root)
        first = dense(mx.nd.ones((1, 1))).asscalar()
        hvd.barrier()
        dense.initialize(mx.init.Constant(hvd.rank() + 5.0), force_reinit=True)
        return first, dense(mx.nd.ones((1, 1))).asscalar(), hvd.barrier()

    assert ranks.run(body) == [(roots[0] + 1, roots[-1] + 5, None)] * 2


def test_broadcasts_in_several_sets_take_place_in_their_order(ranks: RankPool) -> None:
    def body() -> object:
        pair = hvd.add_process_set([1, 2])
        dense = make_dense(hvd.rank() + 1.0)
        hvd.broadcast_parameters(dense.collect_params(), root_rank=0)
        if pair.included():
            hvd.broadcast_parameters(dense.collect_params(), root_rank=2, process_set=pair)
        first = dense(mx.nd.ones((1, 1))).asscalar()
        hvd.barrier()
        dense.initialize(mx.init.Constant(hvd.rank() + 5.0), force_reinit=True)
        return first, dense(mx.nd.ones((1, 1))).asscalar(), hvd.barrier()

    assert ranks.run(body, size=3) == [(1, 5, None)] * 3


def test_deferred_parameters_come_before_a_broadcast_of_the_others(ranks: RankPool) -> None:
    def body() -> object:
        dense = make_dense(hvd.rank() + 1.0)
        hvd.broadcast_parameters(dense.collect_params(), root_rank=0)
        dense.weight.shape = (1, 1)
        dense.weight._finish_deferred_init()  # and no rank has looked at it
        hvd.broadcast_parameters(dense.collect_params(), root_rank=1)
        return dense(mx.nd.ones((1, 1))).asscalar()

    assert ranks.run(body) == [1, 1]


def test_other_contexts_are_no_other_values(ranks: RankPool) -> None:
    def body() -> object:
        dense = make_dense(hvd.rank() + 1.0)
        hvd.broadcast_parameters(dense.collect_params())
        dense(mx.nd.ones((1, 1)))
        if hvd.rank() == 1:  # alone
            dense.collect_params().reset_ctx(mx.cpu(1))
            moved = dense(mx.nd.ones((1, 1), ctx=mx.cpu(1))).asscalar()
            dense.collect_params().reset_ctx(mx.cpu(0))
        else:
            moved = dense(mx.nd.ones((1, 1))).asscalar()
        dense.initialize(mx.init.Constant(hvd.rank() + 5.0), force_reinit=True)
        return moved, dense(mx.nd.ones((1, 1))).asscalar(), hvd.barrier()

    assert ranks.run(body) == [(1, 5, None)] * 2


@pytest.mark.parametrize("remedy", ["broadcast", "initialise"])
def test_a_parameter_that_was_not_broadcast_cannot_be_used_until_it_is(ranks: RankPool, remedy: str) -> None:
    def body() -> object:
        dense = make_dense(hvd.rank() + 1.0)
        hvd.broadcast_parameters(dense.collect_params())
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError, match="every rank waits for another"):
                hvd.allreduce(mx.nd.ones(1), name="elsewhere")
            dense(mx.nd.ones((1, 1)))
        else:
            for use in (dense, dense, lambda _: dense.weight.data()):
                with pytest.raises(
                    hvd.HorovodInternalError, match=r"the parameter 'd_weight' .* call broadcast_parameters\(\) again"
                ):
                    use(mx.nd.ones((1, 1)))
        if remedy == "broadcast":
            hvd.broadcast_parameters(dense.collect_params())
        else:
            dense.initialize(mx.init.Constant(hvd.rank() + 1.0), force_reinit=True)
        return dense(mx.nd.ones((1, 1))).asscalar(), dense.weight.data().asscalar(), hvd.barrier()

    assert ranks.run(body) == [(1, 1, None)] * 2


def test_a_root_whose_values_could_not_be_computed_is_named_to_the_others(ranks: RankPool) -> None:
    def body() -> object:
        is_root = hvd.rank() == 0
        one, two = (
            mx.gluon.Parameter(name, shape=(2, 2) if is_root else (0, 2), allow_deferred_init=True) for name in "ab"
        )
        for parameter in (one, two):
            parameter.initialize(mx.init.Constant(hvd.rank() + 1.0))
        if is_root:
            one.set_data(make_spoilt(2))
            with pytest.raises(mx.MXNetError, match="not positive definite"):
                hvd.broadcast_parameters({"a": one, "b": two})
        else:
            hvd.broadcast_parameters({"a": one, "b": two})
            for parameter in (one, two):
                parameter.shape = (2, 2)
                parameter._finish_deferred_init()
        with pytest.raises(hvd.HorovodInternalError, match=r"(?s)'a' may differ between ranks.*not positive definite"):
            one.data()
        return two.data().asnumpy()[0, 0], hvd.barrier()

    assert ranks.run(body) == [(1, None)] * 2
