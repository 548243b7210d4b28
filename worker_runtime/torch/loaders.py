"""`hvd.split_data` for PyTorch: data loaders that give each rank its share of the data.

The new loader is a copy of the given one with another sampler, or another iterable dataset. All its other settings, and
the attributes of a subclass, are kept. In an elastic job the loader also records which batches are processed.
"""

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from worker_runtime.api.basics import rank, size
from worker_runtime.elastic import recording
from worker_runtime.elastic import sampler as elastic_sampler
from worker_runtime.elastic.recording import Epochs, go_through
from worker_runtime.preparation import DataNotSplitError, RankOrder, count_share, share_stream
from worker_runtime.rendezvous import read_is_elastic
from worker_runtime.torch.elastic import ElasticSampler

LoaderT = TypeVar("LoaderT", bound=DataLoader[Any])

# torch's samplers, which ignore ranks.
_TORCH_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
_BY_HAND = "give each rank its part by hand, and pass split_data=False to hvd.prepare()"


class PassSampler(DistributedSampler[Any]):
    """A DistributedSampler that goes to the next epoch after each pass; `set_epoch` sets the epoch of the next pass.

    A pass begins with its first sample: a loader with worker processes and `batch_size=None` makes two iterators.
    """

    def __iter__(self) -> Iterator[Any]:
        indices = super().__iter__()
        self.epoch += 1
        yield from indices


class RankSampler(RankOrder, Sampler[int]):
    """A sampler that gives each rank its share of another sampler's order; see `preparation.RankOrder`."""


class RankStream(IterableDataset[Any]):
    """An iterable dataset of which each rank gets every size-th sample.

    Each worker process of a loader takes this share of its own stream. So a dataset that splits itself among the
    loader's processes (`torch.utils.data.get_worker_info()`) still works. The stream must be the same on all ranks.

    Args:
        dataset: the dataset to share.
    """

    def __init__(self, dataset: IterableDataset[Any]) -> None:
        self.dataset = dataset
        self._rank, self._size = rank(), size()  # stored, since a loader's process that is not forked has no ranks

    def __iter__(self) -> Iterator[Any]:
        return share_stream(self.dataset, self._rank, self._size)

    def __len__(self) -> int:
        return count_share(len(self.dataset), self._size)  # type: ignore[arg-type]  # a TypeError where it has none


class RecordedSampler(recording.RecordedSampler, ElasticSampler):
    """An ElasticSampler whose loader calls `record_batch`; see `worker_runtime.elastic.recording.RecordedSampler`."""


class _RecordedLoader(DataLoader[Any]):
    """The methods that `make_recorded` puts in front of a loader's class."""

    sampler: RecordedSampler
    _rows: int
    _find_epoch: Callable[[], int] | None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares a class of its own
        """Give the remaining batches of the epoch, then those that lost workers left."""
        return go_through(self.sampler, super().__iter__, self._rows, self._find_epoch)


def make_recorded(loader: LoaderT, batch_size: int, find_epoch: Callable[[], int] | None) -> LoaderT:
    """Make a loader with a RecordedSampler record its batches; it remains an instance of its class.

    Args:
        loader: the loader, which is changed in place.
        batch_size: the number of samples in one of its batches.
        find_epoch: returns the epoch of a pass; None to count passes.
    """
    cls = type(loader)
    vars(loader).update(_rows=batch_size, _find_epoch=find_epoch)
    loader.__class__ = type(
        cls.__name__, (_RecordedLoader, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__}
    )
    return loader


_SPLIT = (DistributedSampler, RankSampler, elastic_sampler.ElasticSampler)


@overload
def split_data(data: LoaderT, *, seed: int = ..., state: Epochs | None = ...) -> LoaderT: ...
@overload
def split_data(data: Sampler[int], *, seed: int = ..., state: Epochs | None = ...) -> Sampler[int]: ...
def split_data(data: Any, *, seed: int = 0, state: Epochs | None = None) -> Any:
    """Give each rank its share of a loader's data: every size-th sample, equally many on all ranks.

    The given loader is not changed. Batches keep their size: `batch_size` is the batch size of one worker.

    - Sequential and shuffled loaders get a `DistributedSampler`. Each pass through the loader is the next epoch, so you
      need not call `set_epoch`. All ranks must go through the loader equally often.
    - Other torch samplers (`RandomSampler` with replacement or with a number of samples, `WeightedRandomSampler`,
      `SubsetRandomSampler`) stay: rank 0's sampler draws the order of each pass, and all ranks share it.
    - Iterable datasets: each rank takes every size-th sample of the stream.
    - In an elastic job, or with a state, the loader gets an `hvd.elastic.ElasticSampler`, and records the processed
      batches itself. Samples that lost workers left follow at the end of the pass. In a pass without optimizer steps,
      such as an evaluation, these are the whole part of a worker that was lost before its end, since its results are
      lost with it. All ranks must go through the loader equally often. A worker that is lost after its pass takes its
      results with it: count the rows with an allreduce, and repeat the pass where they are fewer than the data set.
    - A loader that already has a `DistributedSampler` or an `ElasticSampler` is returned unchanged.

    Args:
        data: a DataLoader; or a sampler of your own that ignores ranks, for a DataLoader that you create.
        seed: the seed of the shuffled order, the same on all ranks.
        state: for elastic training; its `epoch` is the epoch of each pass.

    Returns:
        A loader of the same class; a sampler if you give a sampler.

    Raises:
        ValueError: `data` is not a DataLoader, has a batch sampler or sampler of your own, or cannot be split in an
            elastic job. The message says what to write by hand.
    """
    if isinstance(data, Sampler):
        return RankSampler(data)
    if not isinstance(data, DataLoader):
        raise DataNotSplitError(f"it is a {type(data).__name__}, not a torch.utils.data.DataLoader", _BY_HAND)

    is_elastic = state is not None or read_is_elastic(os.environ)
    if isinstance(data.dataset, IterableDataset):
        return _split_stream(data, data.dataset, is_elastic=is_elastic)
    sampler = _find_sampler(data)
    if isinstance(sampler, _SPLIT):
        return data
    is_shuffled = _find_shuffling(sampler, data.dataset)

    if is_elastic:
        return _split_elastically(data, is_shuffled, seed, state)
    if is_shuffled is None:
        return _copy_with_sampler(data, RankSampler(sampler))
    return _copy_with_sampler(data, PassSampler(data.dataset, size(), rank(), shuffle=is_shuffled, seed=seed))


def _split_stream(loader: LoaderT, dataset: IterableDataset[Any], *, is_elastic: bool) -> LoaderT:
    if is_elastic:
        raise DataNotSplitError("the samples of a stream that a lost worker leaves are unknown", _BY_HAND)
    if isinstance(dataset, IterDataPipe):
        raise DataNotSplitError("it is a data pipe", "end the pipe with .sharding_filter(), and pass split_data=False")
    if not isinstance(dataset, RankStream):
        return _copy(loader, dataset=RankStream(dataset))
    return loader


def _split_elastically(loader: LoaderT, is_shuffled: bool | None, seed: int, state: Epochs | None) -> LoaderT:
    if is_shuffled is None:
        reason = "an elastic job distributes samples in sequential or in shuffled order"
        raise DataNotSplitError(reason, "make the DataLoader with shuffle=True or False, or pass split_data=False")
    if not loader.in_order:
        reason = "an elastic job counts samples as processed in their order"
        raise DataNotSplitError(reason, "make the DataLoader with in_order=True")
    sampler = RecordedSampler(loader.dataset, shuffle=is_shuffled, seed=seed)  # type: ignore[arg-type]  # it is sized
    copied = _copy_with_sampler(loader, sampler)
    batches = copied.batch_sampler
    batch_size = 1
    if isinstance(batches, BatchSampler):
        batch_size = batches.batch_size
    return make_recorded(copied, batch_size, None if state is None else lambda: state.epoch)


def _find_sampler(loader: DataLoader[Any]) -> Any:
    """The loader's sampler, also inside torch's BatchSampler."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    if type(batches) is not BatchSampler:
        raise DataNotSplitError(
            f"its batch sampler is a {type(batches).__name__}",
            "make it give the batches [hvd.rank()::hvd.size()], equally many on all ranks, and pass split_data=False",
        )
    return batches.sampler


def _find_shuffling(sampler: object, dataset: Any) -> bool | None:
    """Whether the sampler shuffles all samples: False for sequential order, None for any other order.

    Raises:
        DataNotSplitError: the sampler is not torch's.
    """
    if type(sampler) not in _TORCH_SAMPLERS:
        has_items = hasattr(sampler, "__getitem__")
        how = "of torch.utils.data.Subset(dataset, sampler)" if has_items else "with sampler=hvd.split_data(sampler)"
        first = "" if has_items or isinstance(sampler, Sampler) else "derive it from torch's Sampler, and "
        raise DataNotSplitError(
            f"its sampler is a {type(sampler).__name__}, which may give each rank its share already",
            f"if it does, pass split_data=False; else {first}make the DataLoader {how}",
        )
    if isinstance(sampler, SequentialSampler) and len(sampler) == len(dataset):
        return False
    if isinstance(sampler, RandomSampler) and len(sampler) == len(dataset) and not sampler.replacement:
        return True
    return None


def _copy_with_sampler(loader: LoaderT, sampler: Sampler[int]) -> LoaderT:
    batches = loader.batch_sampler
    if isinstance(batches, BatchSampler):
        batches = BatchSampler(sampler, batches.batch_size, batches.drop_last)
    return _copy(loader, sampler=sampler, batch_sampler=batches)


def _copy(loader: LoaderT, **changes: object) -> LoaderT:
    """A copy of a loader with changed attributes, set in its dict because DataLoader's setter rejects some of them."""
    copied = copy.copy(loader)
    vars(copied).update(changes, _iterator=None)  # persistent worker processes stay with the original
    return copied
