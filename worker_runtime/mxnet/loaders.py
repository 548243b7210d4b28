"""Data loaders of Gluon of which each rank gets its share."""

from typing import Any

from mxnet.gluon.data import BatchSampler, DataLoader, FilterSampler, RandomSampler, Sampler, SequentialSampler

from worker_runtime.preparation import DataNotSplitError, RankOrder

_OWN = (FilterSampler, RandomSampler, SequentialSampler)  # Gluon's, which know of no ranks

_KEPT = ("batchify_fn", "num_workers", "pin_memory", "pin_device_id", "prefetch", "thread_pool", "timeout")


class RankSampler(RankOrder, Sampler):  # type: ignore[misc]  # mxnet has no types
    """Any sampler's order, of which each rank gets its share; see `preparation.RankOrder`."""


def split_data(data: Any) -> Any:  # noqa: ANN401 - mxnet has no types
    """Give each rank its share of a Gluon DataLoader's data: every size-th sample, and as many on all ranks.

    The loader that is given stays as it is; the new one has all else of it, its own worker processes too. The order is
    that of rank 0's sampler, so that `np.random.seed()` on rank 0 repeats it; it is another one in each pass if the
    loader shuffles. All ranks begin each pass together. `batch_size` counts for one worker.

    Args:
        data: a `gluon.data.DataLoader`; or a sampler of your own that knows of no ranks, to make a DataLoader with.

    Raises:
        ValueError: it is neither, or has a batch sampler or a sampler of its own; the sentence says what to write by
            hand.
    """
    if isinstance(data, Sampler):
        return RankSampler(data)
    if type(data) is not DataLoader:
        raise DataNotSplitError(
            f"it is a {type(data).__name__}, not a gluon.data.DataLoader",
            "give each rank its part by hand (rows [hvd.rank()::hvd.size()] of arrays, or num_parts=hvd.size() and "
            "part_index=hvd.rank() of an mx.io iterator), and pass split_data=False to hvd.prepare()",
        )
    own = vars(data)
    batches = own["_batch_sampler"]
    if type(batches) is not BatchSampler:
        raise DataNotSplitError(
            f"its batch sampler is a {type(batches).__name__}",
            "let it give the batches [hvd.rank()::hvd.size()], equally many on all ranks, and pass split_data=False",
        )
    sampler, batch_size, last_batch = (vars(batches)[name] for name in ("_sampler", "_batch_size", "_last_batch"))
    if isinstance(sampler, RankSampler):
        return data
    if type(sampler) not in _OWN:
        raise DataNotSplitError(
            f"its sampler is a {type(sampler).__name__}, which may give each rank its share already",
            "if it does, pass split_data=False; else make the DataLoader with sampler=hvd.split_data(sampler)",
        )
    kept = {name: own[f"_{name}"] for name in _KEPT}
    shared = BatchSampler(RankSampler(sampler), batch_size, last_batch)
    return DataLoader(own["_dataset"], batch_sampler=shared, auto_reload=data.auto_reload, **kept)
