"""From gradients to buckets: the same on all ranks, or an error says that it is not.

What the ranks must know of each other's gradients before, they find out in one small operation, the negotiation. It
costs a round trip, so an optimizer makes it in its first steps, and whenever what was found may have changed.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.buckets import Item, plan_buckets
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.dense import DenseBucket, describe_order
from worker_runtime.reduction.settings import Settings
from worker_runtime.reduction.unpacked import CompressedBucket, InPlaceBucket, SparseBucket


@dataclass(frozen=True, slots=True)
class Negotiation:
    """What holds on all ranks alike.

    steps_since_discard: for how many steps, on the rank where it is least, no complete gradients were thrown away;
        negative for some time after that has happened.
    order: the entries, in the order in which they became ready on the first rank.
    sparse_dims: of each entry, how many sparse dimensions its gradient has where it is sparse; 0 if nowhere.
    is_of_all: no rank had joined: all know this.
    """

    steps_since_discard: int
    order: tuple[int, ...]
    sparse_dims: tuple[int, ...]
    is_of_all: bool


PLAN = "allreduce.{}.plan"  # the operation's name, but for the optimizer's


def ask_negotiation(
    comm: Communicator, entries: Sequence[Entry], ready: Iterable[Entry], steps_since_discard: int, note: str
) -> Handle[list[torch.Tensor]]:
    """Ask what all ranks have; see `read_negotiation`.

    Args:
        comm: among whom.
        entries: of all gradients.
        ready: those that are complete, in the order in which they became so.
        steps_since_discard: of this rank; see `Negotiation`.
        note: what all ranks must have alike.
    """
    places = dict.fromkeys(entries, 0)
    if comm.is_first:
        places.update((entry, place) for place, entry in enumerate(ready, 1) if entry in places)
    sparse = [entry.find_sparse_dims() for entry in entries]
    # All by the maximum: what only one rank knows, the others leave at zero.
    findings = torch.tensor([-steps_since_discard, *places.values(), *sparse], dtype=torch.int64, device="cpu")
    operation = Allreduce([findings], Combination(Reduction.MAX), comm.members, PLAN.format(comm.name))
    operation.is_of_step = True
    operation.question = operation.question.add_note(note)
    return comm.engine.submit(operation, is_awaited=True)


def read_negotiation(comm: Communicator, handle: Handle[list[torch.Tensor]], count: int) -> Negotiation:
    """Wait for what `ask_negotiation` has asked.

    Args:
        comm: among whom.
        handle: of the negotiation.
        count: of the entries.

    Raises:
        HorovodInternalError: the ranks have not the same gradients, or the operation failed.
    """
    (found,) = comm.engine.wait(handle)
    negative_steps, *numbers = found.tolist()
    order = sorted(range(count), key=lambda index: (numbers[index] or count + 1, -index))
    terms = handle.terms
    return Negotiation(-negative_steps, tuple(order), tuple(numbers[count:]), terms is not None and not terms.joined)


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
