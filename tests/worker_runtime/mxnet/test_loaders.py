"""A prepared DataLoader of Gluon gives each rank its share, and has all else of the one that was given."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.data import BatchSampler, DataLoader, FilterSampler, Sampler, SequentialSampler

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.loaders import RankSampler, split_data

pytestmark = pytest.mark.usefixtures("forking")

DATA = list(range(10))

# Each argument of DataLoader, with what it needs beside it.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "batch_size": {"batch_size": 4},
    "shuffle": {"shuffle": True},
    "sampler": {"sampler": SequentialSampler(10)},
    "last_batch": {"last_batch": "rollover"},
    "batch_sampler": {"batch_size": None, "batch_sampler": BatchSampler(SequentialSampler(10), 3, "discard")},
    "batchify_fn": {"batchify_fn": lambda samples: samples},
    "num_workers": {"num_workers": 1, "thread_pool": True},
    "pin_memory": {"pin_memory": True},
    "pin_device_id": {"pin_device_id": 3},
    "prefetch": {"prefetch": 5, "num_workers": 1, "thread_pool": True},
    "thread_pool": {"num_workers": 1, "thread_pool": True},
    "timeout": {"timeout": 7},
    "auto_reload": {"auto_reload": True},
}
REPLACED = {"_batch_sampler", "_worker_pool", "_iter"}


class Order(Sampler):  # type: ignore[misc]  # mxnet has no types
    """A sampler of the program's own."""

    def __iter__(self) -> Iterator[int]:
        return iter([5, 3, 1])

    def __len__(self) -> int:
        return 3


def make_loader(**arguments: object) -> DataLoader:
    return DataLoader(DATA, **{"batch_size": 3, **arguments})


@pytest.mark.parametrize("name", sorted({*inspect.signature(DataLoader).parameters} - {"dataset"}))
def test_every_argument_of_a_loader_is_kept(name: str) -> None:
    given = make_loader(**ARGUMENTS[name])
    prepared = split_data(given)
    kept = {key: value for key, value in vars(given).items() if key not in REPLACED}
    assert {key: value for key, value in vars(prepared).items() if key not in REPLACED} == kept
    assert (prepared._worker_pool is None) == (given._worker_pool is None)
    own, others = prepared._batch_sampler, given._batch_sampler
    assert (own._batch_size, own._last_batch) == (others._batch_size, others._last_batch)
    assert isinstance(own._sampler, RankSampler)
    assert own._sampler.sampler is others._sampler
    assert split_data(prepared) is prepared


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (make_loader, [[[0, 2, 4], [6, 8]], [[1, 3, 5], [7, 9]]]),
        (lambda: make_loader(last_batch="discard"), [[[0, 2, 4]], [[1, 3, 5]]]),
        (lambda: make_loader(num_workers=2), [[[0, 2, 4], [6, 8]], [[1, 3, 5], [7, 9]]]),
        (lambda: make_loader(sampler=FilterSampler(lambda each: each > 6, DATA)), [[[7, 9]], [[8, 7]]]),
        (lambda: make_loader(sampler=hvd.split_data(Order())), [[[5, 1]], [[3, 5]]]),
    ],
)
def test_each_rank_gets_every_size_th_sample(ranks: RankPool, make: Callable[[], DataLoader], expected: object) -> None:
    def body() -> object:
        loader = hvd.split_data(make())
        batches = [batch.asnumpy().tolist() for batch in loader]
        assert len(loader) == len(batches)
        return batches

    assert ranks.run(body) == expected


def test_ranks_share_the_order_that_rank_0_shuffles_anew_in_each_pass(ranks: RankPool) -> None:
    def body() -> object:
        loader = hvd.split_data(make_loader(batch_size=5, shuffle=True))
        np.random.seed(hvd.rank())  # noqa: NPY002 - the generator by which Gluon shuffles
        return [batch.asnumpy().tolist() for _ in range(2) for batch in loader]

    generator, orders = np.random.RandomState(0), []
    for _ in range(2):
        order = np.arange(10)
        generator.shuffle(order)
        orders.append(order.tolist())
    assert ranks.run(body) == [[order[rank::2] for order in orders] for rank in range(2)]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: mx.io.NDArrayIter(np.zeros((4, 1))), "it is a NDArrayIter, not a gluon.data.DataLoader; .*part_index"),
        (lambda: make_loader(batch_size=None, batch_sampler=[[0, 1]]), "its batch sampler is a list; make it give"),
        (lambda: make_loader(sampler=[0, 1]), "its sampler is a list.*where sampler is a gluon.data.Sampler"),
        (lambda: make_loader(sampler=Order()), r"its sampler is a Order.*sampler=hvd.split_data\(sampler\)"),
    ],
)
def test_an_indivisible_loader_is_refused_with_code_to_write_by_hand(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"the data cannot be split among the ranks: {sentence}"):
        split_data(make())
