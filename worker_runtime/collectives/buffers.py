"""How tensors lie in memory, and which of a call travel in one fusion buffer.

gloo takes the memory of a tensor from its first element on, whatever its strides. So only tensors that are plain are
ever handed to it.

Small tensors of one dtype are packed, since each piece of communication costs much more than a copy. A large one
travels by itself, in place where that is asked for, since a copy of it would cost. All ranks decide alike, from dtypes
and shapes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

LARGE_BYTES = 1024 * 1024


def is_plain(tensor: torch.Tensor) -> bool:
    """Its elements lie one after the other in row-major order, and are what they seem: not lazily conjugated.

    Tensors of inference mode are not called plain, since other threads may not write to them.
    """
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())


def make_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The values in row-major order, as all ranks have them whatever their strides; shares memory where it can."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def copy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values, row-major, in memory of their own."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device).copy_(tensor.detach())


def view_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The memory of a plain tensor as one row of bytes: gloo refuses some dtypes, and needs none to copy."""
    flat = rows.view(-1)
    if flat.stride(0) != 1:  # torch keeps the stride of a single element, and then refuses to see its bytes
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def view_memory(rows: torch.Tensor) -> memoryview:
    """The memory of a plain CPU tensor, to be read and written by others than torch."""
    memory: memoryview = (rows.detach() if rows.requires_grad else rows).numpy().reshape(-1).data
    return memory.cast("B")


def view_travelling(buffer: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers that every backend can reduce: complex ones as pairs, truth values as 0 and 1."""
    if buffer.is_complex():
        return torch.view_as_real(buffer)
    return buffer.view(torch.uint8) if buffer.dtype == torch.bool else buffer


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of the tensors' values one after the other; of a single one without a copy where that can be.

    Args:
        tensors: at least one, all on one device.
    """
    parts = [view_bytes(make_rows(tensor)) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def unpack(buffer: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    """Cut `pack`'s bytes into the memory of plain tensors."""
    parts = buffer.split_with_sizes([count_bytes(target) for target in targets])
    for target, part in zip(targets, parts, strict=True):
        view_bytes(target).copy_(part)


def count_bytes(tensor: torch.Tensor) -> int:
    """How much memory its values take, strides aside."""
    return tensor.numel() * tensor.element_size()


def count_row_bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """How many bytes elements of such a shape take."""
    return math.prod(shape) * dtype.itemsize


def share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether writing to one may change the other; tensors of one storage count as such."""
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Several of its elements are one place in memory, as after `expand`."""
    if tensor.is_contiguous():
        return False
    return any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True))


def fuse_small(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Which indices travel together; those without bytes do not travel.

    Args:
        counts: how many bytes each has; all ranks must know them alike.
    """
    small = tuple(index for index, count in enumerate(counts) if 0 < count < LARGE_BYTES)
    large: list[tuple[int, ...]] = [(index,) for index, count in enumerate(counts) if count >= LARGE_BYTES]
    return [small, *large] if small else large


@dataclass(frozen=True, slots=True)
class Fusion:
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


def plan_fusions(dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]]) -> tuple[Fusion, ...]:
    """Decide which tensors share a buffer.

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
        Fusion(
            dtypes[part[0]],
            shapes[part[0]] if len(part) == 1 else (sum(counts[index] for index in part),),
            tuple(part),
            tuple(counts[index] for index in part),
        )
        for part in parts
    )


def gather(fusion: Fusion, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new buffer with the values of the fusion's tensors; `tensors` are the call's."""
    if fusion.single is not None:
        return copy(tensors[fusion.single], fusion.dtype)
    own = [tensors[index] for index in fusion.indices]
    with torch.no_grad():
        # Where dtypes differ torch promotes them, which is exact: they all travel as one that holds all their values.
        return torch.cat([tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in own]).to(fusion.dtype)


def find_place(fusion: Fusion, into: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
    """The memory of the result, if the fusion can be reduced right there."""
    if into is None or fusion.single is None:
        return None
    target = into[fusion.single]
    return target.detach() if target.dtype == fusion.dtype and is_plain(target) else None


def gather_in_place(
    fusion: Fusion, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None
) -> torch.Tensor:
    """As `gather`, into the memory of the result where it can be."""
    place = find_place(fusion, into)
    if place is None or fusion.single is None or into is None:
        return gather(fusion, tensors)
    source = tensors[fusion.single]
    if source is not into[fusion.single] and not place.is_set_to(source):
        if share_memory(place, source):
            source = copy(source)  # parts of one tensor: what is written must not change what is read
        place.copy_(source.detach())
    return place


def distribute(
    fusion: Fusion, buffer: torch.Tensor, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Bring the values of a buffer to where the results shall go; each result is a tensor of its own, with its index.

    Args:
        fusion: whose buffer it is.
        buffer: the reduced values.
        tensors: the call's, for dtypes and shapes.
        into: where the results shall go; None makes new tensors.
    """
    if fusion.single is not None:
        index = fusion.single
        if into is None:
            yield index, buffer.to(tensors[index].dtype)
        else:
            if not buffer.is_set_to(into[index]):
                into[index].detach().copy_(buffer)
            yield index, into[index]
        return
    pieces = buffer.split_with_sizes(fusion.counts)
    shaped = [
        piece if (tensor := tensors[index]).dim() == 1 else piece.view(tensor.shape)
        for index, piece in zip(fusion.indices, pieces, strict=True)
    ]
    if into is None:
        for index, piece in zip(fusion.indices, shaped, strict=True):
            yield index, piece.to(tensors[index].dtype, copy=True)
    else:
        targets = [target.detach() if (target := into[index]).requires_grad else target for index in fusion.indices]
        torch._foreach_copy_(targets, shaped)  # a third of what the calls one by one take
        yield from ((index, into[index]) for index in fusion.indices)
