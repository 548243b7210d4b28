"""Arrays whose memory torch does not see: played with mx.cpu(1), and on a GPU where MXNet has one."""

from collections.abc import Iterator
from contextlib import contextmanager

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.networks import begin_long
from tests.worker_runtime.mxnet.training import WAYS, check, make_net, make_sgd, take_step, train
from tests.worker_runtime.operations import FORMS, KINDS, SIZE, SOME, expect_cases, play_cases
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet import arrays

needs_gpu = pytest.mark.skipif(not mx.context.num_gpus(), reason="there is no CUDA device for MXNet")
WHERE = ["cpu", pytest.param("gpu", marks=[pytest.mark.gpu, needs_gpu])]


@contextmanager
def device_context(where: str) -> Iterator[mx.Context]:
    """A context of a device, or one that counts as such: no view is made of its arrays."""
    context = mx.gpu(hvd.local_rank() % mx.context.num_gpus()) if where == "gpu" else mx.cpu(1)
    view, is_on_device = arrays._view, arrays.is_on_device

    def view_others(array: mx.nd.NDArray) -> object:
        assert array.context != context, "it was to be copied"
        return view(array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_view", view_others)
        patch.setattr(arrays, "is_on_device", lambda other: other == context or is_on_device(other))
        yield context


@pytest.mark.parametrize("where", WHERE)
def test_each_form_has_the_same_result_on_a_device(ranks: RankPool, where: str) -> None:
    forms = [form for form in FORMS if KINDS[form] != "alltoall"]

    def body() -> object:
        with device_context(where) as context, pytest.MonkeyPatch.context() as patch:
            some = hvd.add_process_set(SOME)
            patch.setattr(hvd, "add_process_set", lambda _: some)
            return [play_cases(hvd, form, lambda row: mx.nd.array(row, ctx=context), to_list) for form in forms]

    assert ranks.run(body, size=SIZE) == [list(found) for found in zip(*map(expect_cases, forms), strict=True)]


def to_list(array: mx.nd.NDArray) -> object:
    return array.asnumpy().tolist()


@pytest.mark.parametrize("where", WHERE)
def test_computations_enqueued_before_and_after_keep_their_order(ranks: RankPool, where: str) -> None:
    def body() -> object:
        with device_context(where) as context:
            x = begin_long(mx.nd.ones(3, ctx=context))  # which is computed still
            reader = begin_long(x)
            handle = hvd.allreduce_async_(x, op=hvd.Sum)
            assert hvd.synchronize(handle) is x
            rows, splits = hvd.alltoall(x + hvd.rank(), mx.nd.array([1, 2], ctx=context, dtype="int32"))
            assert {x.context, rows.context, splits.context} == {context}
            return reader.asnumpy().tolist(), (x + 1).asnumpy().tolist(), rows.asnumpy().tolist()

    assert ranks.run(body) == [([1.0] * 3, [3.0] * 3, [2.0, 3.0]), ([1.0] * 3, [3.0] * 3, [2.0, 2.0, 3.0, 3.0])]


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_one_process_also_where_only_one_rank_has_a_device(ranks: RankPool, way: str) -> None:
    def body() -> list[np.ndarray]:
        with device_context("cpu"):
            return train(way, "momentum", hvd.rank(), hvd.size())

    check(ranks.run(body), train(way, "momentum"), 1e-4 if way == "module" else 1e-9)


@pytest.mark.parametrize("where", WHERE)
def test_parameters_are_broadcast_and_averaged_on_devices_beside_others(ranks: RankPool, where: str) -> None:
    def body() -> object:
        with device_context(where) as context:
            net = make_net([context, mx.cpu(2)])
            for parameter in net.collect_params().values():
                parameter.set_data(mx.nd.zeros(parameter.shape) + hvd.rank())
            hvd.broadcast_parameters(net.collect_params(), root_rank=1)
            params = mx.gluon.ParameterDict()
            params.get("p", shape=2, init="zeros").initialize(ctx=[context, mx.cpu(2)])
            trainer = make_sgd(params)
            with mx.autograd.record():
                losses = [(data * (hvd.rank() + 1)).sum() for data in params["p"].list_data()]
            mx.autograd.backward(losses)
            take_step(trainer)
            values = [data.asnumpy() for parameter in net.collect_params().values() for data in parameter.list_data()]
            return {each.mean() for each in values}, [data.asnumpy().tolist() for data in params["p"].list_data()]

    assert ranks.run(body) == [({1.0}, [[-3.0, -3.0]] * 2)] * 2  # the mean of 2 and 4
