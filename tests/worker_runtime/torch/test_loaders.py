"""A prepared DataLoader gives each rank its share, and is in all else the one that was given."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch import loaders
from worker_runtime.torch.loaders import PassSampler, RankSampler, RankStream, split_data

pytestmark = pytest.mark.usefixtures("forking")

DATA = torch.arange(10)
REPLACED = {"sampler", "batch_sampler", "_iterator"}
ELASTIC = {"HOROVOD_ELASTIC": "1"}

# Each argument of DataLoader, with what it needs beside it.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "batch_size": {"batch_size": 3},
    "shuffle": {"shuffle": True},
    "sampler": {"sampler": SequentialSampler(DATA)},
    "batch_sampler": {"batch_sampler": BatchSampler(SequentialSampler(DATA), 3, drop_last=True)},
    "num_workers": {"num_workers": 2},
    "collate_fn": {"collate_fn": lambda samples: samples},
    "pin_memory": {"pin_memory": True},
    "drop_last": {"drop_last": True, "batch_size": 4},
    "timeout": {"timeout": 30, "num_workers": 1},
    "worker_init_fn": {"worker_init_fn": lambda _: None, "num_workers": 1},
    "multiprocessing_context": {"multiprocessing_context": "spawn", "num_workers": 1},
    "generator": {"generator": torch.Generator(), "shuffle": True},
    "prefetch_factor": {"prefetch_factor": 5, "num_workers": 1},
    "persistent_workers": {"persistent_workers": True, "num_workers": 1},
    "pin_memory_device": {"pin_memory_device": "cuda"},
    "in_order": {"in_order": False, "num_workers": 1},
}


class Batches(Sampler[list[int]]):
    """A batch sampler of the program's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2]])


class Chooser:
    """A sampler that is no `Sampler`, which torch accepts."""

    def __iter__(self) -> Iterator[int]:
        return iter([5, 3, 1])


class Order(Sampler[int]):
    """A sampler of the program's own, which counts its passes."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter([5, 3, 1])

    def __len__(self) -> int:
        return 3


class Stream(IterableDataset[int]):
    """Parts itself among the loader's processes, as a stream must that is read by several."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(11) if info is None else range(info.id, 11, info.num_workers))

    def __len__(self) -> int:
        return 11


class OwnLoader(DataLoader[Any]):
    """A subclass, with what it has added."""

    added = "added"


@pytest.fixture
def split_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Splits a loader for one rank of a job that is not there."""

    def split(given: object, rank: int, size: int, **options: object) -> object:
        monkeypatch.setattr(loaders, "rank", lambda: rank)
        monkeypatch.setattr(loaders, "size", lambda: size)
        return split_data(given, **options)

    return split


def make_loader(cls: type[DataLoader[Any]] = DataLoader, **arguments: object) -> DataLoader[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arguments that torch is about to give up
        return cls(arguments.pop("dataset", DATA), **arguments)


@pytest.mark.parametrize("name", sorted({*inspect.signature(DataLoader).parameters} - {"dataset"}))
def test_every_argument_of_a_loader_is_kept(split_for: Callable[..., Any], name: str) -> None:
    given = make_loader(OwnLoader, **ARGUMENTS[name])
    given._iterator = iter([])  # of worker processes that persist
    before = dict(vars(given))
    prepared = split_for(given, 1, 2)
    assert (type(prepared), prepared.added, vars(given)) == (OwnLoader, "added", before)
    kept = {key: value for key, value in vars(given).items() if key not in REPLACED}
    assert all(vars(prepared)[key] is value for key, value in kept.items())
    assert vars(prepared).keys() == vars(given).keys()
    assert prepared._iterator is None
    assert isinstance(prepared.sampler, PassSampler)
    assert prepared.sampler.shuffle == ("shuffle" in ARGUMENTS[name])
    batches = prepared.batch_sampler
    assert (batches.sampler, batches.batch_size) == (prepared.sampler, given.batch_sampler.batch_size)
    assert batches.drop_last == given.batch_sampler.drop_last


@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        ({"batch_size": 2}, [[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]),
        ({"batch_size": 2, "drop_last": True}, [[0, 2], [4, 6]], [[1, 3], [5, 7]]),
        ({"batch_size": 4, "dataset": DATA[:5]}, [[0, 2, 4]], [[1, 3, 0]]),
        ({"batch_size": None, "dataset": DATA[:4]}, [0, 2], [1, 3]),
        ({"batch_sampler": BatchSampler(SequentialSampler(DATA), 3, drop_last=True)}, [[0, 2, 4]], [[1, 3, 5]]),
        ({"batch_size": 5, "num_workers": 2}, [[0, 2, 4, 6, 8]], [[1, 3, 5, 7, 9]]),
    ],
)
def test_each_rank_gets_every_size_th_sample(
    split_for: Callable[..., Any], arguments: dict[str, Any], first: list[object], second: list[object]
) -> None:
    given = make_loader(**arguments)
    prepared = [split_for(given, rank, 2) for rank in range(2)]
    assert [[batch.tolist() for batch in loader] for loader in prepared] == [first, second]
    assert [len(loader) for loader in prepared] == [len(first), len(second)]


@pytest.mark.parametrize("arguments", [{"batch_size": 5}, {"batch_size": None}, {"batch_size": None, "num_workers": 1}])
def test_each_pass_is_the_next_epoch_as_set_epoch_makes_it_by_hand(
    split_for: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    prepared = split_for(make_loader(shuffle=True, **arguments), 1, 2, seed=7)
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, 2, 1, seed=7)

    def read() -> list[Any]:
        return [sample for batch in prepared for sample in batch.reshape(-1).tolist()]

    def read_by_hand(epoch: int) -> list[Any]:
        sampler.set_epoch(epoch)
        return list(sampler)

    assert [read() for _ in range(3)] == [read_by_hand(epoch) for epoch in range(3)]
    prepared.sampler.set_epoch(9)
    assert [read() for _ in range(2)] == [read_by_hand(epoch) for epoch in (9, 10)]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_a_stream_that_the_loaders_processes_share_already(
    split_for: Callable[..., Any], workers: int
) -> None:
    given = make_loader(dataset=Stream(), num_workers=workers, batch_size=None)
    prepared = [split_for(given, rank, 3) for rank in range(3)]
    read = [list(loader) for loader in prepared]
    assert {len(samples) for samples in read} == {4}
    assert set().union(*read) == set(range(11))
    assert [len(loader) for loader in prepared] == [4] * 3
    assert split_for(prepared[0], 0, 3) is prepared[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightedRandomSampler([1.0, 2.0, 3.0, 0.0], 7),
        lambda: RandomSampler(DATA, replacement=True),
        lambda: RandomSampler(DATA, num_samples=5),
        lambda: SubsetRandomSampler([2, 4, 6]),
        lambda: SequentialSampler(DATA[:3]),
        lambda: split_data(Order()),
    ],
)
def test_with_other_samplers_rank_0_draws_the_order_and_all_ranks_get_their_share(
    ranks: RankPool, make: Callable[[], Sampler[int]]
) -> None:
    def body() -> object:
        sampler = make()
        loader = split_data(DataLoader(DATA, sampler=sampler, batch_size=None))
        torch.manual_seed(hvd.rank())
        shares = [int(sample) for _ in range(2) for sample in loader.sampler]
        torch.manual_seed(0)
        whole = sampler.sampler if isinstance(sampler, RankSampler) else sampler
        drawn = [list(whole) for _ in range(2)]
        torch.manual_seed(1)
        list(loader.sampler)
        return shares, drawn, len(loader), torch.rand(()).item()

    (first, drawn, length, after), (second, _, _, others_after) = ranks.run(body)
    assert after == others_after  # the ranks' generators stay in step
    assert length == -(-len(drawn[0]) // 2)
    expected = [[*order, order[0]][: 2 * length] for order in drawn]
    assert (first, second) == tuple([index for order in expected for index in order[rank::2]] for rank in range(2))


def test_a_pass_of_a_loader_with_processes_draws_one_order(ranks: RankPool) -> None:
    def body() -> int:
        order = Order()
        list(DataLoader(DATA, sampler=split_data(order), batch_size=None, num_workers=1))
        return order.passes

    assert ranks.run(body) == [1, 1]


@pytest.mark.parametrize(
    ("make", "environment", "sentence"),
    [
        (lambda: [1, 2], {}, r"it is a list, not a torch.utils.data.DataLoader; give each rank its part by hand"),
        (lambda: make_loader(batch_sampler=Batches()), {}, r"its batch sampler is a Batches; .* \[hvd.rank\(\)::hvd"),
        (lambda: make_loader(sampler=Order()), {}, r"its sampler is a Order.*sampler=hvd.split_data\(sampler\)"),
        (lambda: make_loader(sampler=[0, 1]), {}, r"a list.*of torch.utils.data.Subset\(dataset, sampler\)"),
        (lambda: make_loader(sampler=Chooser()), {}, r"a Chooser.*derive it from torch's Sampler, and make the Data"),
        (lambda: make_loader(dataset=torch.utils.data.datapipes.iter.IterableWrapper(DATA)), {}, "sharding_filter"),
        (lambda: make_loader(dataset=Stream()), ELASTIC, "a stream that a lost worker leaves are unknown"),
        (lambda: make_loader(sampler=SubsetRandomSampler([1])), ELASTIC, "make the DataLoader with shuffle=True"),
        (lambda: make_loader(in_order=False, num_workers=1), ELASTIC, "make the DataLoader with in_order=True"),
    ],
)
def test_an_indivisible_loader_is_refused_with_code_to_write_by_hand(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], environment: dict[str, str], sentence: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to give up data pipes
        given = make()
    with pytest.raises(ValueError, match=f"the data cannot be split among the ranks: .*{sentence}"):
        split_data(given)


@pytest.mark.parametrize(
    "sampler",
    [DistributedSampler(DATA, 2, 1), PassSampler(DATA, 2, 1), RankSampler(Order())],
    ids=lambda each: type(each).__name__,
)
def test_a_loader_with_a_distributed_sampler_is_not_split_again(sampler: Sampler[int]) -> None:
    given = make_loader(sampler=sampler)
    assert split_data(given) is given


def test_a_stream_keeps_its_ranks_in_a_spawned_loader_process(split_for: Callable[..., Any]) -> None:
    given = make_loader(dataset=Stream(), num_workers=1, batch_size=None, multiprocessing_context="spawn")
    assert isinstance(split_for(given, 1, 3).dataset, RankStream)
    assert list(split_for(given, 1, 3)) == [1, 4, 7, 10]
