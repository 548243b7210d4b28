"""Data loaders of PyTorch of which each rank gets its share.

A prepared loader is a copy of the given one with another sampler, or another iterable dataset: all else that it was
made with, and what a subclass has added, stays as it was. In an elastic job it also records which
batches are processed.
"""

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, overload

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
from worker_runtime.elastic import sampler as elastic_sampler
from worker_runtime.preparation import DataNotSplitError, RankOrder, count_share, share_stream
from worker_runtime.rendezvous import read_is_elastic
from worker_runtime.torch.elastic import ElasticSampler

LoaderT = TypeVar("LoaderT", bound=DataLoader[Any])

_OWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)  # torch's, which know of no ranks
_BY_HAND = "give each rank its part by hand, and pass split_data=False to hvd.prepare()"


class Epochs(Protocol):
    """A state that counts epochs, as `hvd.elastic.TorchState(epoch=0)` does."""

    epoch: int


class PassSampler(DistributedSampler[Any]):
    """A DistributedSampler of which each pass is the next epoch; `set_epoch` says which one the next pass is."""

    def __iter__(self) -> Iterator[Any]:
        indices = super().__iter__()
        self.epoch += 1
        return indices


class RankSampler(RankOrder, Sampler[int]):
    """Any sampler's order, of which each rank gets its share; see `preparation.RankOrder`."""


class RankStream(IterableDataset[Any]):
    """An iterable dataset of which each rank gets every size-th sample.

    Each worker process of the loader takes its share of what it would give by itself, so that a dataset which parts
    itself among these processes (`torch.utils.data.get_worker_info()`) still does. The stream must be the same on all
    ranks.

    Args:
        dataset: the whole.
    """

    def __init__(self, dataset: IterableDataset[Any]) -> None:
        self.dataset = dataset
        self._rank, self._size = rank(), size()  # noted, since a loader's process that was not forked has no ranks

    def __iter__(self) -> Iterator[Any]:
        return share_stream(self.dataset, self._rank, self._size)

    def __len__(self) -> int:
        return count_share(len(self.dataset), self._size)  # type: ignore[arg-type]  # a TypeError where it has none


class RecordedSampler(ElasticSampler):
    """An ElasticSampler whose loader records the batches, so that the program need not.

    A batch is in use from when the loader hands it out until the program asks for the next one, commits the state or
    looks for changes of the job: then it has made its step. If the program records it all the same, it counts once.
    """

    _in_use = 0  # samples that are handed out and not recorded
    _is_begun = False  # a pass through the present deal

    def hand_out(self, count: int) -> None:
        """The program gets a batch of so many samples."""
        self._in_use = count

    def settle(self) -> None:
        """Record the batch that was in use."""
        if self._in_use:
            self.record_batch(0, self._in_use)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """As `ElasticSampler.record_batch`; no batch is in use afterwards."""
        self._in_use = 0
        super().record_batch(batch_idx, batch_size)

    def begin_pass(self, epoch: int | None) -> None:
        """Go to the epoch of the next pass, of which the first deals out among the workers that there are by then.

        Args:
            epoch: which one; None for the one after the present one, unless no pass through that has begun.
        """
        self.settle()
        if epoch is None:
            epoch = self.epoch + self._is_begun
        if epoch != self.epoch:
            self.set_epoch(epoch)
        elif not self._is_begun:
            self.reset()
        self._is_begun = True

    def continue_pass(self) -> bool:
        """Deal out what lost workers have left of the epoch; whether there was any."""
        if not self.is_outdated:
            return False
        self.reset()
        self._is_begun = True
        return True

    def set_epoch(self, epoch: int) -> None:
        """As `ElasticSampler.set_epoch`."""
        self.settle()
        super().set_epoch(epoch)

    def reset(self) -> None:
        """Deal out what is left; the batch in use is of another time, unless it was settled before."""
        self._in_use, self._is_begun = 0, False
        super().reset()

    def state_dict(self) -> dict[str, Any]:
        """What is processed, with the batch in use."""
        self.settle()
        return super().state_dict()

    @property
    def is_outdated(self) -> bool:
        """As `ElasticSampler.is_outdated`, which a state asks for when it looks for changes of the job."""
        self.settle()
        return super().is_outdated


class _RecordedLoader(DataLoader[Any]):
    """What is put in front of a loader's class."""

    sampler: RecordedSampler
    _rows: int
    _find_epoch: Callable[[], int] | None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares a class of its own
        """Go through what is left of the epoch, and then through what lost workers have left of it."""
        self.sampler.begin_pass(None if self._find_epoch is None else self._find_epoch())
        is_left = True
        while is_left:
            for batch in super().__iter__():
                self.sampler.hand_out(self._rows)
                yield batch
                self.sampler.settle()
            is_left = self.sampler.continue_pass()


def make_recorded(loader: LoaderT, batch_size: int, find_epoch: Callable[[], int] | None) -> LoaderT:
    """Let a loader with a RecordedSampler record its batches; it remains an instance of its class.

    Args:
        loader: is changed.
        batch_size: how many samples one of its batches is.
        find_epoch: gives the epoch of a pass; None to count passes.
    """
    cls = type(loader)
    vars(loader).update(_rows=batch_size, _find_epoch=find_epoch)
    loader.__class__ = type(
        cls.__name__, (_RecordedLoader, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__}
    )
    return loader


_DEALT = (DistributedSampler, RankSampler, elastic_sampler.ElasticSampler)


@overload
def split_data(data: LoaderT, *, seed: int = ..., state: Epochs | None = ...) -> LoaderT: ...
@overload
def split_data(data: Sampler[int], *, seed: int = ..., state: Epochs | None = ...) -> Sampler[int]: ...
def split_data(data: Any, *, seed: int = 0, state: Epochs | None = None) -> Any:
    """Give each rank its share of a loader's data: every size-th sample, and as many on all ranks.

    The loader that is given stays as it is. Batches remain as large as they are: `batch_size` counts for one worker.

    - Sequential and shuffled loaders get a `DistributedSampler`. Each pass through the loader is the next epoch of
      it, so that you need not call `set_epoch`; go through it on all ranks equally often.
    - Other samplers of torch (`RandomSampler` with replacement or with a number of samples, `WeightedRandomSampler`,
      `SubsetRandomSampler`) remain: rank 0's one draws the order of each pass, which is dealt out to all.
    - Iterable datasets: each rank takes every size-th sample of the stream.
    - In an elastic job, or with a state: an `hvd.elastic.ElasticSampler`, to which the loader itself reports which
      batches are processed. What lost workers had left comes at the end of the pass.
    - Whatever has a `DistributedSampler` or `ElasticSampler` already is returned as it is.

    Args:
        data: a DataLoader; or a sampler of your own that knows of no ranks, to make a DataLoader with.
        seed: of the order of shuffled samples, the same on all ranks.
        state: whose `epoch` says which epoch a pass is, for elastic training.

    Raises:
        ValueError: it is no DataLoader, or has a batch sampler or a sampler of its own, or its samples cannot be dealt
            out in an elastic job; the sentence says what to write by hand.
    """
    if isinstance(data, Sampler):
        return RankSampler(data)
    if not isinstance(data, DataLoader):
        raise DataNotSplitError(f"it is a {type(data).__name__}, not a torch.utils.data.DataLoader", _BY_HAND)
    is_elastic = state is not None or read_is_elastic(os.environ)
    if isinstance(data.dataset, IterableDataset):
        return _split_stream(data, data.dataset, is_elastic=is_elastic)
    sampler = _find_sampler(data)
    if isinstance(sampler, _DEALT):
        return data
    is_shuffled = _find_shuffling(sampler, data.dataset)
    if is_elastic:
        return _split_elastically(data, is_shuffled, seed, state)
    if is_shuffled is None:
        return _copy_with_sampler(data, RankSampler(sampler))
    return _copy_with_sampler(data, PassSampler(data.dataset, size(), rank(), shuffle=is_shuffled, seed=seed))


def _split_stream(loader: LoaderT, dataset: IterableDataset[Any], *, is_elastic: bool) -> LoaderT:
    if is_elastic:
        raise DataNotSplitError("nobody can tell which samples of a stream are left when a worker is lost", _BY_HAND)
    if isinstance(dataset, IterDataPipe):
        raise DataNotSplitError("it is a data pipe", "end the pipe with .sharding_filter(), and pass split_data=False")
    return loader if isinstance(dataset, RankStream) else _copy(loader, dataset=RankStream(dataset))


def _split_elastically(loader: LoaderT, is_shuffled: bool | None, seed: int, state: Epochs | None) -> LoaderT:  # noqa: FBT001 - None is a third
    if is_shuffled is None:
        reason = "in an elastic job samples are dealt out in their own order or in a shuffled one"
        raise DataNotSplitError(reason, "make the DataLoader with shuffle=True or False, or pass split_data=False")
    if not loader.in_order:
        reason = "in an elastic job samples count as processed in their order"
        raise DataNotSplitError(reason, "make the DataLoader with in_order=True")
    sampler = RecordedSampler(loader.dataset, shuffle=is_shuffled, seed=seed)  # type: ignore[arg-type]  # it is sized
    copied = _copy_with_sampler(loader, sampler)
    batches = copied.batch_sampler
    batch_size = batches.batch_size if isinstance(batches, BatchSampler) else 1
    return make_recorded(copied, batch_size, None if state is None else lambda: state.epoch)


def _find_sampler(loader: DataLoader[Any]) -> Any:  # noqa: ANN401 - whatever gives indices
    """What the loader draws its samples by."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    if type(batches) is not BatchSampler:
        raise DataNotSplitError(
            f"its batch sampler is a {type(batches).__name__}",
            "let it give the batches [hvd.rank()::hvd.size()], equally many on all ranks, and pass split_data=False",
        )
    return batches.sampler


def _find_shuffling(sampler: object, dataset: Any) -> bool | None:  # noqa: ANN401 - torch does not say that it is sized
    """Whether all samples come in a shuffled order; None where it is neither that nor their own order.

    Raises:
        DataNotSplitError: it is not one of torch's samplers.
    """
    if type(sampler) not in _OWN:
        raise DataNotSplitError(
            f"its sampler is a {type(sampler).__name__}, which may give each rank its share already",
            "if it does, pass split_data=False; else make the DataLoader with sampler=hvd.split_data(sampler)",
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
    """A loader like another one; what DataLoader does not let one set is set in its dict."""
    copied = copy.copy(loader)
    vars(copied).update(changes, _iterator=None)  # its worker processes, if they persist, are the other one's
    return copied
