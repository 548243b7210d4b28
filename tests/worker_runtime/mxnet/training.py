"""Small trainings that several workers and one process must do alike."""

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.01},
}
WAYS = ("trainer", "trainer, split", "optimizer", "module")
BATCH = 12
STEPS = 6

MakeTrainer = Callable[..., mx.gluon.Trainer]


def make_optimizer(name: str, **more: object) -> mx.optimizer.Optimizer:
    """One of OPTIMIZERS."""
    return mx.optimizer.create("sgd" if name == "momentum" else name, **OPTIMIZERS[name], **more)


def make_values(*shape: int, seed: int = 3) -> np.ndarray:
    """The same on all ranks."""
    return np.random.RandomState(seed).normal(size=shape)


def make_net(contexts: Sequence[mx.Context] = (mx.cpu(),), *, hybrid: bool = False) -> mx.gluon.nn.HybridSequential:
    """Two layers in float64 with the same parameters on all ranks."""
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(8, activation="tanh", in_units=6), mx.gluon.nn.Dense(1, in_units=8))
    net.cast("float64")
    net.initialize(ctx=list(contexts))
    for seed, parameter in enumerate(net.collect_params().values()):
        parameter.set_data(mx.nd.array(make_values(*parameter.shape, seed=seed), dtype="float64"))
    if hybrid:
        net.hybridize()
    return net


def make_batch(step: int, rank: int, size: int) -> np.ndarray:
    """The part of a rank; all parts together are the batch of one process."""
    return make_values(BATCH, 6, seed=100 + step)[rank::size]


def make_parameters(*shapes: tuple[int, ...], dtypes: Sequence[str] = ()) -> mx.gluon.ParameterDict:
    """p0, p1, ...: ones, on one context."""
    params = mx.gluon.ParameterDict()
    for index, shape in enumerate(shapes):
        dtype = dtypes[index] if dtypes else "float32"
        params.get(f"p{index}", shape=shape, dtype=dtype, init="ones").initialize()
    return params


def differentiate(params: mx.gluon.ParameterDict, factor: float, names: Sequence[str] = ()) -> None:
    """Backward: each gradient, or that of these parameters, is `factor` everywhere, on the last context."""
    with mx.autograd.record():
        losses = [(params[name].list_data()[-1] * factor).sum() for name in names or params]
    mx.autograd.backward(losses)


def learn(net: mx.gluon.Block, batch: mx.nd.NDArray) -> None:
    """Backward: the loss is the sum of the squares of what comes out."""
    with mx.autograd.record():
        loss = net(batch).square()
    loss.backward()


def take_step(trainer: mx.gluon.Trainer, batch_size: int = 1, *, is_split: bool = False, **more: bool) -> None:
    """One step, in one call or as its two halves."""
    if is_split:
        trainer.allreduce_grads()
        trainer.update(batch_size, **more)
    else:
        trainer.step(batch_size, **more)


def subtract(trainer: mx.gluon.Trainer, params: mx.gluon.ParameterDict, *batch_sizes: int) -> list[list[float]]:
    """Take steps in which each gradient is the rank + 1, and return which values each parameter has then."""
    for batch_size in batch_sizes:
        differentiate(params, hvd.rank() + 1)
        trainer.step(batch_size)
    return [np.unique(parameter.data().asnumpy().astype("float64")).tolist() for parameter in params.values()]


def read(net: mx.gluon.Block) -> list[np.ndarray]:
    """The parameters."""
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def make_plain(params: mx.gluon.ParameterDict, optimizer: mx.optimizer.Optimizer) -> mx.gluon.Trainer:
    """The trainer of one process."""
    return mx.gluon.Trainer(params, optimizer, kvstore=None)


def make_wrapped(
    params: mx.gluon.ParameterDict,
    optimizer: mx.optimizer.Optimizer,
    **settings: Any,
) -> mx.gluon.Trainer:
    """As MXNet's own guide to Horovod has it."""
    return mx.gluon.Trainer(params, hvd.DistributedOptimizer(optimizer, **settings), kvstore=None)


MAKERS: dict[str, MakeTrainer] = {"trainer": hvd.DistributedTrainer, "optimizer": make_wrapped}
in_both_ways = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def make_sgd(
    params: mx.gluon.ParameterDict,
    make: MakeTrainer = hvd.DistributedTrainer,
    **settings: Any,
) -> mx.gluon.Trainer:
    """A distributed trainer that subtracts gradients."""
    return make(params, mx.optimizer.create("sgd", learning_rate=1.0, multi_precision=True), **settings)


def train_gluon(
    make_trainer: MakeTrainer,
    optimizer: mx.optimizer.Optimizer,
    rank: int = 0,
    size: int = 1,
    *,
    hybrid: bool = False,
    split: bool = False,
) -> list[np.ndarray]:
    """Train for a few steps, with the whole batch when the size is 1, and return the parameters."""
    net = make_net([mx.cpu(rank)], hybrid=hybrid)
    trainer = make_trainer(net.collect_params(), optimizer)
    for step in range(STEPS):
        if step == STEPS // 2:
            trainer.set_learning_rate(trainer.learning_rate / 2)
        batch = mx.nd.array(make_batch(step, rank, size), ctx=mx.cpu(rank), dtype="float64")
        learn(net, batch)
        take_step(trainer, len(batch), is_split=split)
    return read(net)


def train_module(optimizer: mx.optimizer.Optimizer, rank: int = 0, size: int = 1) -> list[np.ndarray]:
    """The same with a Module, in float32; `optimizer` divides by the batch size of one worker."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="first")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="tanh"), num_hidden=1, name="second")
    module = mx.mod.Module(
        mx.sym.LinearRegressionOutput(net, name="out"), label_names=["out_label"], context=mx.cpu(rank)
    )
    count = BATCH // size
    batches = np.concatenate([make_batch(step, rank, size) for step in range(STEPS)]).astype("float32")
    data = mx.io.NDArrayIter(batches, batches.sum(axis=1, keepdims=True), count, label_name="out_label")
    shapes = {"first_weight": (8, 6), "first_bias": (8,), "second_weight": (1, 8), "second_bias": (1,)}
    params = {name: mx.nd.array(make_values(*shape)) for name, shape in shapes.items()}
    module.fit(data, kvstore=None, optimizer=optimizer, num_epoch=2, arg_params=params, aux_params={})
    trained, _ = module.get_params()
    return [trained[name].asnumpy() for name in shapes]


def train(way: str, name: str, rank: int = 0, size: int = 1, *, hybrid: bool = False) -> list[np.ndarray]:
    """Train in one of WAYS; with a size of 1 as one process does."""
    if way == "module":
        optimizer = make_optimizer(name, rescale_grad=size / BATCH)
        return train_module(optimizer if size == 1 else hvd.DistributedOptimizer(optimizer), rank, size)
    make = make_plain if size == 1 else MAKERS[way.partition(",")[0]]
    return train_gluon(make, make_optimizer(name), rank, size, hybrid=hybrid, split="split" in way)


def check(replicas: Sequence[Sequence[np.ndarray]], alone: Sequence[np.ndarray], tolerance: float = 1e-9) -> None:
    """All ranks have the same parameters, to the last bit, and about those of one process."""
    for replica in replicas:
        assert all(np.array_equal(own, first) for own, first in zip(replica, replicas[0], strict=True))
    for own, expected in zip(replicas[0], alone, strict=True):
        np.testing.assert_allclose(own, expected, rtol=tolerance, atol=tolerance)
