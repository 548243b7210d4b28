"""A prepared loader of an elastic job records its batches and follows the epochs; prepare fills the state."""

from collections.abc import Callable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import pytest
from mxnet.gluon.data import BatchSampler, DataLoader, FilterSampler, SequentialSampler

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.networks import INPUT, make_network
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.sampled_job import Communicator
from worker_runtime.elastic import sampler as samplers

pytestmark = pytest.mark.usefixtures("forking")

COUNT = 12
DATA = list(range(COUNT))


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Of rank 0 of 2."""
    runtime = SimpleNamespace(engine=Communicator.take(0, 2), is_late=False)
    monkeypatch.setattr(samplers, "RUNTIME", runtime)
    return runtime


def make_loader(state: object = None, **arguments: object) -> DataLoader:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        return hvd.split_data(DataLoader(DATA, **{"batch_size": 2, **arguments}), state=state)


def read(loader: DataLoader, runtime: SimpleNamespace) -> list[list[int]]:
    """One pass, a step with each batch."""
    batches = []
    for batch in loader:
        batches.append(batch.asnumpy().tolist())
        runtime.engine.complete_step()
    return batches


@pytest.mark.parametrize(
    "arguments", [{}, {"num_workers": 2, "thread_pool": True}, {"num_workers": 2}, {"auto_reload": True}]
)
def test_a_pass_is_an_epoch_of_the_sampler_and_all_of_it_is_processed(
    runtime: SimpleNamespace, arguments: dict[str, Any]
) -> None:
    loader = make_loader(shuffle=True, **arguments)
    by_hand = samplers.ElasticSampler(range(COUNT))
    for epoch in range(3):
        by_hand.set_epoch(epoch)
        assert [*chain(*read(loader, runtime))] == list(by_hand)
        assert (loader.sampler.epoch, loader.sampler.processed_num) == (epoch, COUNT)


def test_a_pass_follows_the_epoch_of_the_state(runtime: SimpleNamespace) -> None:
    state = SimpleNamespace(epoch=0)
    loader = make_loader(state)
    for state.epoch in (0, 1, 1, 5):
        read(loader, runtime)
        assert loader.sampler.epoch == state.epoch
    assert hvd.split_data(loader) is loader


def test_samples_of_a_lost_worker_come_at_the_end_of_the_pass(runtime: SimpleNamespace) -> None:
    loader, batches = make_loader(), []
    for batch in loader:
        batches.append(batch.asnumpy().tolist())
        runtime.engine.complete_step(*([1] if len(batches) == 2 else []))
    assert batches == [[0, 2], [4, 6], [8, 10], [5, 7], [9, 11]]
    assert ([*chain(*read(loader, runtime))], loader.sampler.epoch) == (DATA, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"last_batch": "rollover"}, "last_batch='keep' or 'discard'"),
        ({"sampler": FilterSampler(lambda each: each > 6, DATA)}, "shuffle=True or False"),
        ({"sampler": SequentialSampler(3)}, "shuffle=True or False"),
    ],
)
def test_a_loader_that_cannot_be_split_in_an_elastic_job_is_refused(
    runtime: SimpleNamespace, arguments: dict[str, Any], sentence: str
) -> None:
    del runtime
    with pytest.raises(ValueError, match=sentence):
        make_loader(**arguments)


def test_a_loader_with_an_elastic_sampler_stays(runtime: SimpleNamespace) -> None:
    del runtime
    loader = DataLoader(DATA, batch_sampler=BatchSampler(hvd.elastic.ElasticSampler(DATA), 2))
    assert hvd.split_data(loader) is loader


def test_prepare_puts_net_trainer_and_sampler_into_the_state(ranks: RankPool) -> None:
    def body() -> object:
        net = make_network(hvd.rank(), INPUT[1])
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        state = hvd.elastic.GluonState(epoch=0)
        net, trainer, loader = hvd.prepare(net, trainer, DataLoader(DATA, 2), scale_lr=True, state=state)
        assert (state.net is net, state.trainer is trainer, state.sampler is loader.sampler) == (True, True, True)
        assert list(state._handlers) == ["net", "trainer", "sampler"]
        rates = [trainer.learning_rate]
        state.learning_rate_scaled_for = 4  # as if there had been four workers
        state.on_reset()
        return [*rates, trainer.learning_rate], state.learning_rate_scaled_for

    assert ranks.run(body) == [([0.2, 0.1], 2)] * 2


def test_an_object_that_cannot_be_prepared_with_a_state_is_refused(ranks: RankPool) -> None:
    def body() -> None:
        net = make_network(0, INPUT[1])
        with pytest.raises(ValueError, match=r"which it lacks; give state=hvd.elastic.GluonState"):
            hvd.prepare(net, data=DataLoader(DATA, 2), state=hvd.elastic.GluonState())
        with pytest.raises(ValueError, match=r"give a gluon.Trainer with the optimizer"):
            hvd.prepare(net, mx.optimizer.create("sgd"), state=hvd.elastic.GluonState(epoch=0))

    ranks.run(body, size=1)


SCHEDULES: dict[str, Callable[[], mx.lr_scheduler.LRScheduler]] = {
    "factor": lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, stop_factor_lr=0.03, base_lr=0.4),
    "steps": lambda: mx.lr_scheduler.MultiFactorScheduler([3, 5], 0.1, base_lr=0.4),
    "polynomial": lambda: mx.lr_scheduler.PolyScheduler(8, base_lr=0.4, final_lr=0.1),
    "cosine, warm-up": lambda: mx.lr_scheduler.CosineScheduler(8, 0.4, 0.1, warmup_steps=3, warmup_begin_lr=0.2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_rate_of_a_scheduler_scales_with_the_job(ranks: RankPool, name: str) -> None:
    """The present half of the workers train with half of the rates that all would have."""

    def body() -> tuple[list[float], list[float]]:
        state, net = hvd.elastic.GluonState(epoch=0), mx.gluon.nn.Dense(1)
        net.initialize()
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.4}, kvstore=None)
        net, trainer = hvd.prepare(net, trainer, scale_lr=True, state=state)
        scheduler, other = SCHEDULES[name](), SCHEDULES[name]()
        trainer.optimizer.lr_scheduler = scheduler
        rates = [[scheduler(2), other(2)]]
        state.learning_rate_scaled_for = 4  # as if there had been four workers
        state.on_reset()
        rates += [[2 * scheduler(step), other(step)] for step in range(3, 10)]
        return [first for first, _ in rates], [second for _, second in rates]

    for scaled, plain in ranks.run(body):
        assert scaled == pytest.approx(plain)
