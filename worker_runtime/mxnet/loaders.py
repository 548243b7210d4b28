"""`hvd.split_data` for Gluon: data loaders that give each rank its share of the data.

In an elastic job the loader also records which batches are processed.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

from mxnet.gluon.data import BatchSampler, DataLoader, FilterSampler, RandomSampler, Sampler, SequentialSampler

from worker_runtime.elastic import recording
from worker_runtime.elastic import sampler as elastic_sampler
from worker_runtime.elastic.recording import Epochs, go_through
from worker_runtime.mxnet.elastic import ElasticSampler
from worker_runtime.preparation import DataNotSplitError, RankOrder
from worker_runtime.rendezvous import read_is_elastic

__all__ = ["split_data"]

_GLUON_SAMPLERS = (FilterSampler, RandomSampler, SequentialSampler)  # Gluon's, which ignore ranks
_KEPT = ("batchify_fn", "num_workers", "pin_memory", "pin_device_id", "prefetch", "thread_pool", "timeout")


class RankSampler(RankOrder, Sampler):  # type: ignore[misc]  # mxnet has no types
    """A sampler that gives each rank its share of another sampler's order; see `preparation.RankOrder`."""


class RecordedSampler(recording.RecordedSampler, ElasticSampler):
    """An ElasticSampler whose loader calls `record_batch`; see `worker_runtime.elastic.recording.RecordedSampler`."""


class RecordedLoader(DataLoader):  # type: ignore[misc]  # mxnet has no types
    """A loader that records its batches.

    Args:
        dataset: the data set.
        batches: gives the batches of `sampler`.
        sampler: its sampler.
        rows: the number of samples in a batch.
        find_epoch: returns the epoch of a pass; None to count passes.
        **settings: of DataLoader.
    """

    def __init__(
        self,
        dataset: Any,
        batches: BatchSampler,
        sampler: RecordedSampler,
        rows: int,
        find_epoch: Callable[[], int] | None,
        **settings: Any,
    ) -> None:
        super().__init__(dataset, batch_sampler=batches, **settings)
        self.sampler = sampler
        self._rows = rows
        self._find_epoch = find_epoch

    def __iter__(self) -> Iterator[Any]:
        """Give the remaining batches of the epoch, then those that lost workers left."""
        return go_through(self.sampler, super().__iter__, self._rows, self._find_epoch)


_SPLIT = (RankSampler, elastic_sampler.ElasticSampler)


def split_data(data: Any, *, seed: int = 0, state: Epochs | None = None) -> Any:
    """Give each rank its share of a Gluon DataLoader's data: every size-th sample, equally many on all ranks.

    The given loader is not changed; the new one has the same settings, and worker processes for itself. Rank 0's
    sampler draws the order of each pass, so `np.random.seed()` on rank 0 makes it reproducible. All ranks must start
    each pass together. `batch_size` is the batch size of one worker.

    In an elastic job, or with a state, the loader gets an `hvd.elastic.ElasticSampler`, and records the processed
    batches itself. Each pass is the next epoch. Samples that lost workers left follow at the end of the pass.

    Args:
        data: a `gluon.data.DataLoader`; or a sampler of your own that ignores ranks, for a DataLoader that you create.
        seed: the seed of the shuffled order in an elastic job, the same on all ranks.
        state: for elastic training; its `epoch` is the epoch of each pass.

    Returns:
        A new DataLoader; a sampler if you give a sampler.

    Raises:
        ValueError: `data` is neither, or has a batch sampler or a sampler of your own, or cannot be split in an elastic
            job. The message says what to write by hand.
    """
    if isinstance(data, Sampler):
        return RankSampler(data)
    if isinstance(data, RecordedLoader):
        return data
    batches = _find_batches(data)
    sampler = vars(batches)["_sampler"]
    if isinstance(sampler, _SPLIT):
        return data
    own = vars(data)
    kept = {name: own[f"_{name}"] for name in _KEPT}
    if state is not None or read_is_elastic(os.environ):
        return _split_elastically(own["_dataset"], batches, seed, state, kept)
    shared = _rebatch(batches, RankSampler(sampler))
    return DataLoader(own["_dataset"], batch_sampler=shared, auto_reload=data.auto_reload, **kept)


def _find_batches(data: Any) -> BatchSampler:
    """The loader's batch sampler.

    Raises:
        DataNotSplitError: it is no loader, or has a batch sampler or a sampler of the program's own.
    """
    if type(data) is not DataLoader:
        raise DataNotSplitError(
            f"it is a {type(data).__name__}, not a gluon.data.DataLoader",
            "give each rank its part by hand (rows [hvd.rank()::hvd.size()] of arrays, or num_parts=hvd.size() and "
            "part_index=hvd.rank() of an mx.io iterator), and pass split_data=False to hvd.prepare()",
        )

    batches = vars(data)["_batch_sampler"]
    if type(batches) is not BatchSampler:
        raise DataNotSplitError(
            f"its batch sampler is a {type(batches).__name__}",
            "make it give the batches [hvd.rank()::hvd.size()], equally many on all ranks, and pass split_data=False",
        )

    sampler = vars(batches)["_sampler"]
    if type(sampler) not in _GLUON_SAMPLERS and not isinstance(sampler, _SPLIT):
        raise DataNotSplitError(
            f"its sampler is a {type(sampler).__name__}, which may give each rank its share already",
            "if it does, pass split_data=False; else make the DataLoader with sampler=hvd.split_data(sampler), where "
            "sampler is a gluon.data.Sampler",
        )
    return batches


def _split_elastically(
    dataset: Any,
    batches: BatchSampler,
    seed: int,
    state: Epochs | None,
    kept: dict[str, Any],
) -> RecordedLoader:
    own = vars(batches)
    sampler = own["_sampler"]
    if isinstance(sampler, FilterSampler) or len(sampler) != len(dataset):
        raise DataNotSplitError(
            "an elastic job distributes samples in sequential or in shuffled order",
            "make the DataLoader with shuffle=True or False, or pass split_data=False",
        )
    if own["_last_batch"] == "rollover":
        raise DataNotSplitError(
            "an elastic job counts each sample in its own epoch",
            "make the DataLoader with last_batch='keep' or 'discard', or pass split_data=False",
        )

    recorded = RecordedSampler(dataset, shuffle=isinstance(sampler, RandomSampler), seed=seed)
    # The loader prefetches nothing for the next pass (auto_reload), which may have other samples.
    find_epoch = None if state is None else lambda: state.epoch
    return RecordedLoader(dataset, _rebatch(batches, recorded), recorded, own["_batch_size"], find_epoch, **kept)


def _rebatch(batches: BatchSampler, sampler: Sampler) -> BatchSampler:
    """A batch sampler of the same size and rule for the last batch, over another sampler."""
    own = vars(batches)
    return BatchSampler(sampler, own["_batch_size"], own["_last_batch"])
