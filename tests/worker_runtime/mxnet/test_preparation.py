"""`hvd.prepare` for Gluon does what the five steps do, to the last bit; each step can be left out, or made alone."""

import runpy
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.contrib import amp

import worker_runtime.mxnet as hvd
from tests.house.sources import ROOT
from tests.worker_runtime.mxnet.training import make_net, read
from tests.worker_runtime.ranks import RankPool
from worker_runtime.errors import LocalStepError
from worker_runtime.mxnet.loaders import RankSampler
from worker_runtime.mxnet.preparation import pin_device

EXAMPLE = ROOT / "examples" / "mxnet_gluon_one_line.py"
SETTINGS = {"learning_rate": 0.1, "momentum": 0.9}


def make_trainer(net: gluon.Block, **arguments: object) -> gluon.Trainer:
    return gluon.Trainer(net.collect_params(), "sgd", dict(SETTINGS), **arguments)


def make_loader() -> gluon.data.DataLoader:
    return gluon.data.DataLoader(np.zeros((4, 6)), batch_size=2)


def take_step(net: gluon.Block, trainer: gluon.Trainer, factor: float = 1.0) -> None:
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 6), dtype="float64") * factor).square()
    loss.backward()
    trainer.step(2)


def train_by_hand(data: gluon.data.Dataset) -> list[bytes]:
    """The five steps, with the net, the trainer and the shuffled data of the example."""
    mx.random.seed(1)
    generator = np.random.RandomState(1)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    settings = {"learning_rate": 0.05 * hvd.size(), "momentum": 0.9}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", settings)
    measure = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(5):
        order = np.arange(len(data))
        generator.shuffle(order)
        mine = np.append(order, order[: -len(order) % hvd.size()])[hvd.rank() :: hvd.size()]
        part = gluon.data.SimpleDataset([data[int(index)] for index in mine])
        for images, labels in gluon.data.DataLoader(part, batch_size=32):
            with mx.autograd.record():
                loss = measure(net(images), labels)
            loss.backward()
            trainer.step(len(images))
    return [values.tobytes() for values in read(net)]


def test_the_example_trains_as_its_five_steps_do_to_the_last_bit(ranks: RankPool) -> None:
    def body() -> object:
        with redirect_stdout(StringIO()):
            example = runpy.run_path(str(EXAMPLE))
        return [values.tobytes() for values in read(example["net"])], train_by_hand(example["data"])

    (first, first_by_hand), (second, second_by_hand) = ranks.run(body)
    assert first == second == first_by_hand == second_by_hand


SWITCHES = ("pin_device", "wrap_optimizer", "broadcast", "split_data")


@pytest.mark.parametrize("off", [*SWITCHES, None])
def test_each_step_can_be_left_out(ranks: RankPool, off: str | None) -> None:
    def body() -> object:
        net = gluon.nn.Dense(1, in_units=1)
        net.initialize(mx.init.Constant(float(hvd.rank())))
        trainer, loader = make_trainer(net), make_loader()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mx.context, "num_gpus", lambda: 2)
            patch.setattr(mx, "gpu", mx.cpu)  # whose contexts of several numbers there are
            before = mx.current_context()
            given, trainer, loader = hvd.prepare(net, trainer, loader, **({off: False} if off else {}))
            context = mx.current_context()
        mx.Context._default_ctx.value = before
        assert given is net
        is_split = isinstance(loader._batch_sampler._sampler, RankSampler)
        return context.device_id, type(trainer).__name__, net.weight.data().asscalar(), is_split

    for rank, (device, trainer, value, is_split) in enumerate(ranks.run(body)):
        assert device == (0 if off == "pin_device" else rank)
        assert trainer == ("Trainer" if off == "wrap_optimizer" else "DistributedTrainer")
        assert value == (rank if off == "broadcast" else 0)
        assert is_split == (off != "split_data")


def test_parameters_on_a_gpu_move_to_the_workers_own(ranks: RankPool) -> None:
    def body() -> object:
        class Gpu(mx.Context):  # type: ignore[misc]  # mxnet has no types
            device_type = "gpu"

        moved: list[mx.Context] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("worker_runtime.mxnet.preparation.pin_device", lambda: Gpu("cpu", 1))
            patch.setattr(gluon.Parameter, "list_ctx", lambda _: [Gpu("cpu", 0)])
            patch.setattr(gluon.Parameter, "reset_ctx", lambda _, context: moved.append(context))
            hvd.prepare(make_net(), broadcast=False)
        return [context.device_id for context in moved]

    assert ranks.run(body, size=1) == [[1] * 4]


def test_without_a_gpu_the_context_stays(ranks: RankPool) -> None:
    assert ranks.run(lambda: (str(pin_device()), hvd.local_rank())) == [("cpu(0)", 0), ("cpu(0)", 1)]


def test_a_trainer_keeps_its_optimizer_its_states_and_its_scale(ranks: RankPool) -> None:
    def body() -> object:
        def train(*, is_prepared: bool) -> list[bytes]:
            net = make_net()
            trainer = make_trainer(net, kvstore=None)
            if hvd.rank() == 0 or not is_prepared:
                take_step(net, trainer)  # rank 0 alone has momenta
            if is_prepared:
                optimizer = trainer.optimizer
                net, trainer = hvd.prepare(net, trainer)
                assert hvd.rank() > 0 or trainer.optimizer is optimizer
            for _ in range(2):
                take_step(net, trainer)
            return [values.tobytes() for values in read(net)]

        return train(is_prepared=True) == train(is_prepared=False)

    assert ranks.run(body) == [True, True]


def test_the_trainer_that_was_prepared_steps_no_more(ranks: RankPool) -> None:
    """Each worker would train alone."""

    def body() -> None:
        net = make_net()
        trainer = make_trainer(net, kvstore=None)
        hvd.prepare(net, trainer)
        if hvd.size() == 1:
            take_step(net, trainer)
            return
        with pytest.raises(LocalStepError, match=r"the trainer that hvd.prepare\(\) has returned"):
            take_step(net, trainer)
        with pytest.raises(LocalStepError):
            trainer.update(1)

    ranks.run(body)
    ranks.run(body, size=1)


def test_a_trainer_keeps_the_scaler_of_amp(ranks: RankPool) -> None:
    def body() -> bool:
        net = make_net()
        trainer = make_trainer(net, kvstore=None)
        amp.amp._amp_initialized = amp.amp._amp_loss_scale_initialized = True
        amp.init_trainer(trainer)
        _, prepared = hvd.prepare(net, trainer)
        with amp.scale_loss(mx.nd.ones(1), prepared) as loss:
            return prepared._amp_loss_scaler is trainer._amp_loss_scaler and loss.asscalar() == 2.0**16

    assert ranks.run(body) == [True, True]


def test_parameters_that_are_initialised_later_follow(ranks: RankPool) -> None:
    def body() -> object:
        net = gluon.nn.Dense(2)
        mx.random.seed(hvd.rank())
        net.initialize(mx.init.Xavier())
        net, _ = hvd.prepare(net, make_trainer(net))
        net(mx.nd.ones((1, 3)))
        hvd.barrier()  # the root does not wait for the others
        return net.weight.data().asnumpy().tobytes()

    first, second = ranks.run(body)
    assert first == second


def test_prepared_objects_are_returned_in_their_order(ranks: RankPool) -> None:
    def body() -> object:
        net, loader = make_net(), make_loader()
        assert hvd.prepare(net) is net
        _, optimizer = hvd.prepare(net, mx.optimizer.create("sgd"), scale_lr=True)
        plain = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        _, trainer = hvd.prepare(net, plain)
        assert trainer is plain  # its optimizer averages
        _, distributed = hvd.prepare(net, make_trainer(net), scale_lr=True)
        assert hvd.prepare(net, distributed)[1] is distributed
        _, data = hvd.prepare(net, data=loader)
        return optimizer.lr, distributed.learning_rate, len(data)

    assert ranks.run(body) == [(0.02, 0.2, 1)] * 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda net: (make_trainer(net), net), "a gluon.Block was expected first, not Trainer"),
        (lambda net: (net, make_loader()), "a gluon.Trainer or an optimizer was expected second, not DataLoader"),
        (lambda net: (net, type("Own", (gluon.Trainer,), {})(net.collect_params(), "sgd")), "derive it from hvd"),
        (lambda net: (net, make_trainer(net, compression_params={"type": "2bit"})), "compression=hvd.Compression.fp16"),
        (lambda net: (net, make_trainer(net), [1]), "it is a list, not a gluon.data.DataLoader"),
    ],
)
def test_an_object_that_cannot_be_prepared_is_refused(
    ranks: RankPool, make: Callable[[gluon.Block], tuple[Any, ...]], sentence: str
) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match=sentence):
            hvd.prepare(*make(make_net()))

    ranks.run(body, size=1)


def test_states_in_a_key_value_store_and_a_scheduled_learning_rate_are_refused(ranks: RankPool) -> None:
    def body() -> None:
        net = make_net([mx.cpu(0), mx.cpu(1)])
        trainer = make_trainer(net, update_on_kvstore=True)
        trainer._init_kvstore()
        with pytest.raises(ValueError, match="create it with kvstore=None"):
            hvd.prepare(net, trainer)
        scheduled = mx.optimizer.create("sgd", lr_scheduler=mx.lr_scheduler.FactorScheduler(1))
        with pytest.raises(ValueError, match=r"multiply the scheduler's base_lr by hvd.size\(\)"):
            hvd.scale_learning_rate(scheduled)

    ranks.run(body, size=1)
