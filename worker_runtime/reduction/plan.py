"""From gradients to buckets: the same on all ranks, or they are told that it is not."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import count

from worker_runtime.coordination.ordering.buckets import Item, plan_buckets
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.compressed import CompressedBucket
from worker_runtime.reduction.dense import DenseBucket, InPlaceBucket
from worker_runtime.reduction.memory import describe_order
from worker_runtime.reduction.settings import Settings
from worker_runtime.reduction.sparse import SparseBucket


def make_buckets(
    entries: Sequence[Entry],
    settings: Settings,
    comm: Communicator,
    *,
    sparse_dims: Sequence[int] | None = None,
    order: Iterable[int] | None = None,
    first_number: int = 0,
) -> list[Bucket]:
    """Put gradients into buckets, in the order in which these become complete.

    Args:
        entries: of the gradients.
        settings: how they are combined.
        comm: among whom.
        sparse_dims: of each, as in `Negotiation`; None where all are dense.
        order: in which they become ready; None guesses.
        first_number: of the buckets.
    """
    dims = list(sparse_dims or [0] * len(entries))
    gathers = settings.gathers_sparse
    items = []
    for index, entry in enumerate(entries):
        parameter = entry.parameter
        dtype = settings.choose_dtype(parameter.dtype)
        group: object = None if entry.group is None else (entry.group, parameter.device)
        if gathers and dims[index]:
            group = ("sparse", index)  # by itself
        items.append(Item(parameter.numel() * dtype.itemsize, (dtype, parameter.device), group))
    planned = plan_buckets(items, *settings.bounds, order)
    whole = f"{settings.describe()}, of {len(entries)} in all ({make_digest(entries)})"
    buckets: list[Bucket] = []
    for number, indices in zip(count(first_number), planned, strict=False):
        members = [entries[index] for index in indices]
        note = f"{describe(members)}, {whole}"
        if gathers and dims[indices[0]]:
            buckets.append(SparseBucket(members[0], number, note, settings, dims[indices[0]]))
        elif settings.compressor is not None:
            buckets.append(CompressedBucket(members, number, note, settings, settings.compressor))
        elif settings.in_place and settings.wire_dtype is None:
            buckets.append(InPlaceBucket(members, number, note, settings, comm))
        else:
            part = [dims[index] for index in indices]
            buckets.append(DenseBucket(members, number, note, settings=settings, comm=comm, sparse_dims=part))
    return buckets


def describe(entries: Sequence[Entry]) -> str:
    """Some gradients, for comparison with those of other ranks: how many, from which to which, and a digest of all."""
    if not entries:
        return "no gradients"
    first, last = (f"'{entry.name}' {list(entry.parameter.shape)}" for entry in (entries[0], entries[-1]))
    digest = make_digest(entries)
    if len(entries) == 1:
        return f"gradient {first} ({digest})"
    elements = sum(entry.parameter.numel() for entry in entries)
    return f"{len(entries)} gradients from {first} to {last} with {elements} elements ({digest})"


def make_digest(entries: Iterable[Entry]) -> str:
    """A few characters that differ where anything differs that all ranks must have alike."""
    digest = hashlib.blake2s(digest_size=4)
    for entry in entries:
        parameter = entry.parameter
        text = (entry.name, tuple(parameter.shape), describe_order(parameter), str(parameter.dtype), entry.group)
        digest.update(repr(text).encode())
    return digest.hexdigest()
