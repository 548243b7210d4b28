"""Which tensors of a call travel in one buffer.

Small ones of one dtype are packed, since each piece of communication costs much more than a copy; a large one travels
by itself, in place where that is asked for, since a copy of it would cost. All ranks decide alike, from dtypes and
shapes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from worker_runtime.collectives.layout import copy, is_plain, share_memory

LARGE_BYTES = 1024 * 1024


def sort_parcels(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Which indices travel together; those without bytes do not travel.

    Args:
        counts: how many bytes each has; all ranks must know them alike.
    """
    small = tuple(index for index, count in enumerate(counts) if 0 < count < LARGE_BYTES)
    large: list[tuple[int, ...]] = [(index,) for index, count in enumerate(counts) if count >= LARGE_BYTES]
    return [small, *large] if small else large


@dataclass(frozen=True, slots=True)
class Lot:
    """Tensors of a call that are reduced in one buffer.

    dtype: of the buffer.
    shape: of the buffer: that of its only tensor, or one row.
    indices: which of the call's tensors.
    counts: how many elements each has.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    indices: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def single(self) -> int | None:
        """The index of its only tensor, if it has only one."""
        return self.indices[0] if len(self.indices) == 1 else None


def plan_lots(dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]]) -> tuple[Lot, ...]:
    """Put tensors into lots.

    Args:
        dtypes: as which they travel.
        shapes: of each.
    """
    small: dict[torch.dtype, list[int]] = {}
    counts = [math.prod(shape) for shape in shapes]
    parts: list[list[int]] = []
    for index, dtype in enumerate(dtypes):
        if counts[index] * dtype.itemsize >= LARGE_BYTES:
            parts.append([index])
        elif dtype in small:
            small[dtype].append(index)
        else:
            parts.append(small.setdefault(dtype, [index]))
    return tuple(
        Lot(
            dtypes[part[0]],
            shapes[part[0]] if len(part) == 1 else (sum(counts[index] for index in part),),
            tuple(part),
            tuple(counts[index] for index in part),
        )
        for part in parts
    )


def gather(lot: Lot, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new buffer with the values of the lot's tensors; `tensors` are the call's."""
    if lot.single is not None:
        return copy(tensors[lot.single], lot.dtype)
    own = [tensors[index] for index in lot.indices]
    with torch.no_grad():
        # Where dtypes differ torch promotes them, which is exact: they all travel as one that holds all their values.
        return torch.cat([tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in own]).to(lot.dtype)


def find_place(lot: Lot, into: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
    """The memory of the result, if the lot can be reduced right there."""
    if into is None or lot.single is None:
        return None
    target = into[lot.single]
    return target.detach() if target.dtype == lot.dtype and is_plain(target) else None


def gather_in_place(lot: Lot, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None) -> torch.Tensor:
    """As `gather`, into the memory of the result where it can be."""
    place = find_place(lot, into)
    if place is None or lot.single is None or into is None:
        return gather(lot, tensors)
    source = tensors[lot.single]
    if source is not into[lot.single] and not place.is_set_to(source):
        if share_memory(place, source):
            source = copy(source)  # parts of one tensor: what is written must not change what is read
        place.copy_(source.detach())
    return place


def distribute(
    lot: Lot, buffer: torch.Tensor, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Bring the values of a buffer to where the results shall go; each result is a tensor of its own, with its index.

    Args:
        lot: whose buffer it is.
        buffer: the reduced values.
        tensors: the call's, which tell dtypes and shapes.
        into: where the results shall go; None makes new tensors.
    """
    if lot.single is not None:
        index = lot.single
        if into is None:
            yield index, buffer.to(tensors[index].dtype)
        else:
            if not buffer.is_set_to(into[index]):
                into[index].detach().copy_(buffer)
            yield index, into[index]
        return
    pieces = buffer.split_with_sizes(lot.counts)
    shaped = [
        piece if (tensor := tensors[index]).dim() == 1 else piece.view(tensor.shape)
        for index, piece in zip(lot.indices, pieces, strict=True)
    ]
    if into is None:
        for index, piece in zip(lot.indices, shaped, strict=True):
            yield index, piece.to(tensors[index].dtype, copy=True)
    else:
        targets = [target.detach() if (target := into[index]).requires_grad else target for index in lot.indices]
        torch._foreach_copy_(targets, shaped)  # a third of what the calls one by one take
        yield from ((index, into[index]) for index in lot.indices)
