"""The plan of buckets, and the negotiation that makes it the same on all ranks.

The negotiation is one small allreduce, by which the ranks learn of each other's gradients. It costs a round trip, so an
optimizer negotiates only in its warm-up steps.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.plans.buckets import Item, plan_buckets
from worker_runtime.reduction.bucket import Bucket, Entry, find_dtype
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.dense import DenseBucket, describe_order
from worker_runtime.reduction.settings import Settings
from worker_runtime.reduction.unpacked import CompressedBucket, InPlaceBucket, SparseBucket


@dataclass(frozen=True, slots=True)
class Negotiation:
    """The result of a negotiation, the same on all ranks.

    steps_since_discard: the number of steps without discarded gradients, on the rank where it is least; negative for
        some steps after a discard.
    order: the indices of the entries, in the order in which their gradients became ready on the first rank.
    sparse_dims: the number of sparse dimensions of each entry's gradient; 0 where it is dense on all ranks.
    is_of_all: all ranks took part; none had called `join()`.
    """

    steps_since_discard: int
    order: tuple[int, ...]
    sparse_dims: tuple[int, ...]
    is_of_all: bool


PLAN = "allreduce.{}.plan"  # the operation's name, without the optimizer's


def ask_negotiation(
    comm: Communicator, entries: Sequence[Entry], ready: Iterable[Entry], steps_since_discard: int, note: str
) -> Handle[list[torch.Tensor]]:
    """Submit a negotiation; see `read_negotiation`.

    Args:
        comm: the communicator.
        entries: the entries of all gradients.
        ready: the entries with complete gradients, in the order in which they became ready.
        steps_since_discard: this rank's number; see `Negotiation`.
        note: a description that must be the same on all ranks.
    """
    places = dict.fromkeys(entries, 0)
    if comm.is_first:
        places.update((entry, place) for place, entry in enumerate(ready, 1) if entry in places)
    sparse = [entry.find_sparse_dims() for entry in entries]
    # All are combined by the maximum: for a number that only one rank knows, the others send zero.
    findings = torch.tensor([-steps_since_discard, *places.values(), *sparse], dtype=torch.int64, device="cpu")
    operation = Allreduce([findings], Combination(Reduction.MAX), comm.members, PLAN.format(comm.name))
    operation.is_of_step = True
    operation.request = operation.request.add_note(note)
    return comm.engine.submit(operation, is_awaited=True)


def read_negotiation(comm: Communicator, handle: Handle[list[torch.Tensor]], count: int) -> Negotiation:
    """Wait for a negotiation that `ask_negotiation` has submitted.

    Args:
        comm: the communicator.
        handle: the handle of the negotiation.
        count: the number of entries.

    Raises:
        HorovodInternalError: the ranks have different gradients, or the operation failed.
    """
    (found,) = comm.engine.wait(handle)
    negative_steps, *numbers = found.tolist()
    order = sorted(range(count), key=lambda index: (numbers[index] or count + 1, -index))
    release = handle.release
    return Negotiation(
        -negative_steps, tuple(order), tuple(numbers[count:]), release is not None and not release.joined
    )


def make_buckets(
    entries: Sequence[Entry],
    settings: Settings,
    comm: Communicator,
    *,
    sparse_dims: Sequence[int] | None = None,
    order: Iterable[int] | None = None,
    first_number: int = 0,
) -> list[Bucket[Any]]:
    """Put gradients into buckets, in the order in which the buckets become complete.

    Args:
        entries: the entries of the gradients.
        settings: how the gradients are combined.
        comm: the communicator.
        sparse_dims: see `Negotiation`; None where all gradients are dense.
        order: the order in which gradients become ready; None for the reverse order of the parameters.
        first_number: the number of the first bucket.
    """
    dims = list(sparse_dims or [0] * len(entries))
    gathers = settings.gathers_sparse
    items = []
    for index, entry in enumerate(entries):
        parameter = entry.parameter
        dtype = settings.choose_dtype(find_dtype(parameter))
        group: object = None
        if gathers and dims[index]:
            group = ("sparse", index)  # a bucket of one gradient
        elif entry.group is not None:
            group = (entry.group, parameter.device)
        items.append(Item(parameter.numel() * dtype.itemsize, (dtype, parameter.device), group))

    planned = plan_buckets(items, *settings.bounds, order)
    whole = f"{settings.describe()}, of {len(entries)} in all ({make_digest(entries)})"
    buckets: list[Bucket[Any]] = []
    for number, indices in zip(count(first_number), planned, strict=False):
        members, part = [entries[index] for index in indices], [dims[index] for index in indices]
        note = f"{describe(members)}, {whole}"
        if gathers and dims[indices[0]]:
            buckets.append(SparseBucket(members[0], number, note, settings, dims[indices[0]]))
        elif settings.compressor is not None:
            compressor = settings.compressor
            buckets.append(
                CompressedBucket(members, number, note, settings=settings, compressor=compressor, sparse_dims=part)
            )
        elif settings.in_place and settings.wire_dtype is None:
            buckets.append(InPlaceBucket(members, number, note, settings, comm))
        else:
            buckets.append(DenseBucket(members, number, note, settings=settings, comm=comm, sparse_dims=part))
    return buckets


def describe(entries: Sequence[Entry]) -> str:
    """A description of gradients to compare with other ranks': their number, the first, the last, and a digest."""
    if not entries:
        return "no gradients"
    first, last = (f"'{entry.name}' {list(entry.parameter.shape)}" for entry in (entries[0], entries[-1]))
    digest = make_digest(entries)
    if len(entries) == 1:
        return f"gradient {first} ({digest})"
    elements = sum(entry.parameter.numel() for entry in entries)
    return f"{len(entries)} gradients from {first} to {last} with {elements} elements ({digest})"


def make_digest(entries: Iterable[Entry]) -> str:
    """A short digest of all properties of the entries that must be the same on all ranks."""
    digest = hashlib.blake2s(digest_size=4)
    for entry in entries:
        parameter = entry.parameter
        dtypes = str(parameter.dtype), str(find_dtype(parameter))
        text = (entry.name, tuple(parameter.shape), describe_order(parameter), *dtypes, entry.group)
        digest.update(repr(text).encode())
    return digest.hexdigest()
