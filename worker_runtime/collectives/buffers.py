"""The memory of tensors, and fusion buffers.

gloo reads and writes a tensor's memory from its first element on, whatever its strides. So it gets only plain tensors.

Small tensors of one dtype are fused, since each communication costs much more than a copy. A large tensor is sent
separately, and in place if requested, to avoid a copy. All ranks decide the same, from dtypes and shapes.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

LARGE_BYTES = 1024 * 1024


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain: contiguous, not lazily conjugated or negated, and not of inference mode.

    Other threads may not write to tensors of inference mode.
    """
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())


def make_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the values in row-major order, which shares memory where possible."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def copy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A row-major copy of the values."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device).copy_(tensor.detach())


def view_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The memory of a plain tensor as a one-dimensional tensor of bytes, since gloo rejects some dtypes."""
    flat = rows.view(-1)
    # A single element keeps its stride, and torch would refuse to view it as bytes.
    if flat.stride(0) != 1:
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def view_memory(rows: torch.Tensor) -> memoryview:
    """The memory of a plain CPU tensor as a memoryview of bytes.

    After `rows.numpy()`, the program could not resize its tensor.
    """
    buffer = _make_array_type(rows.nbytes).from_address(rows.data_ptr())
    buffer.storage = rows.untyped_storage()  # type: ignore[attr-defined]  # the program may give the tensor another one
    return memoryview(buffer).cast("B")


@lru_cache(maxsize=1024)
def _make_array_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


def view_reducible(buffer: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that every backend can reduce: complex numbers as pairs, bool as uint8."""
    if buffer.is_complex():
        return torch.view_as_real(buffer)
    if buffer.dtype == torch.bool:
        return buffer.view(torch.uint8)
    return buffer


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The concatenated bytes of the tensors' values; for a single tensor without a copy where possible.

    Args:
        tensors: at least one tensor, all on one device.
    """
    parts = [view_bytes(make_rows(tensor)) for tensor in tensors]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts)


def unpack(buffer: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    """Cut `pack`'s bytes into the memory of plain tensors."""
    parts = buffer.split_with_sizes([count_bytes(target) for target in targets])
    for target, part in zip(targets, parts, strict=True):
        view_bytes(target).copy_(part)


def read_payload(payload: memoryview, targets: Sequence[torch.Tensor]) -> None:
    """Copy a payload into targets, one after the other."""
    offset = 0
    for target in targets:
        end = offset + count_bytes(target)
        if offset < end:
            view_memory(view_bytes(target))[:] = payload[offset:end]
        offset = end


def count_bytes(tensor: torch.Tensor) -> int:
    """The number of bytes of a tensor's values, without gaps between them."""
    return tensor.numel() * tensor.element_size()


def count_row_bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """The number of bytes of a tensor of this dtype and shape."""
    return math.prod(shape) * dtype.itemsize


def share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same storage, so that writing to one may change the other."""
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements share memory, as after `expand` or `as_strided`."""
    if tensor.numel() == 0 or tensor.is_contiguous():
        return False
    dimensions = [pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[1] > 1]
    end = 0  # the greatest offset in the dimensions of the smaller strides
    for stride, extent in sorted(dimensions):
        if stride <= end:
            break
        end += stride * (extent - 1)
    else:
        return False  # the usual case: each dimension steps over the smaller ones
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for stride, extent in dimensions:
        offsets = (offsets + torch.arange(extent, dtype=torch.int64, device="cpu").mul(stride).unsqueeze(1)).flatten()
    return len(set(offsets.tolist())) < tensor.numel()


def fuse_small(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Group the indices of tensors that are sent together; tensors without bytes are not sent.

    Args:
        counts: the number of bytes of each tensor, the same on all ranks.
    """
    small = tuple(index for index, count in enumerate(counts) if 0 < count < LARGE_BYTES)
    large: list[tuple[int, ...]] = [(index,) for index, count in enumerate(counts) if count >= LARGE_BYTES]
    if small:
        return [small, *large]
    return large


@dataclass(frozen=True, slots=True)
class Fusion:
    """The plan of a fusion buffer: tensors of a call that are reduced together.

    dtype: the dtype of the buffer.
    shape: the shape of the buffer: that of its only tensor, or one dimension.
    indices: the indices of its tensors in the call.
    counts: the number of elements of each tensor.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    indices: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def single(self) -> int | None:
        """The index of its only tensor, if it has only one."""
        if len(self.indices) == 1:
            return self.indices[0]
        return None


def plan_fusions(dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]]) -> tuple[Fusion, ...]:
    """Plan the fusion buffers of a call.

    Args:
        dtypes: the dtype in which each tensor is sent.
        shapes: the shape of each tensor.
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
    return concatenate([tensors[index] for index in fusion.indices], fusion.dtype)


def concatenate(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A new one-dimensional buffer with the values of all tensors."""
    with torch.no_grad():
        # Where dtypes differ, torch promotes them, which is exact: the buffer's dtype holds all their values.
        return torch.cat([tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in tensors]).to(dtype)


def find_target(fusion: Fusion, into: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
    """The memory of the result, if the buffer can be reduced in place."""
    if into is None or fusion.single is None:
        return None
    target = into[fusion.single]
    if target.dtype == fusion.dtype and is_plain(target):
        return target.detach()
    return None


def gather_in_place(
    fusion: Fusion, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None
) -> torch.Tensor:
    """Like `gather`, in the memory of the result where possible."""
    target = find_target(fusion, into)
    if target is None or fusion.single is None or into is None:
        return gather(fusion, tensors)
    source = tensors[fusion.single]
    if source is not into[fusion.single] and not target.is_set_to(source):
        if share_memory(target, source):
            source = copy(source)  # views of one tensor: writing the result must not change the source
        target.copy_(source.detach())
    return target


def distribute(
    fusion: Fusion, buffer: torch.Tensor, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Copy the values of a buffer to the results; yield each result with its index.

    Args:
        fusion: the plan of the buffer.
        buffer: the reduced values.
        tensors: the tensors of the call, for dtypes and shapes.
        into: the tensors for the results; None creates new ones.
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

    if into is None:
        yield from zip(
            fusion.indices, separate(buffer, fusion.counts, [tensors[index] for index in fusion.indices]), strict=True
        )
    else:
        targets = [into[index] for index in fusion.indices]
        spread(buffer, fusion.counts, targets)
        yield from zip(fusion.indices, targets, strict=True)


def separate(buffer: torch.Tensor, counts: Sequence[int], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut a buffer into new tensors with the shapes and dtypes of `like`, each in its own memory.

    Args:
        buffer: one dimension.
        counts: the number of elements of each tensor.
        like: tensors of these numbers of elements.
    """
    if all(tensor.dim() == 1 and tensor.dtype is buffer.dtype for tensor in like):
        parts: Any = torch.split_with_sizes_copy(buffer, counts)  # type: ignore[func-returns-value]  # torch's mistake
        return list(parts)  # in a third of the time of single copies
    return [
        piece.view(tensor.shape).to(tensor.dtype, copy=True)
        for tensor, piece in zip(like, buffer.split_with_sizes(counts), strict=True)
    ]


def spread(buffer: torch.Tensor, counts: Sequence[int], targets: Sequence[torch.Tensor]) -> None:
    """Copy the parts of a buffer to tensors; see `separate`."""
    pieces = [
        piece if target.dim() == 1 else piece.view(target.shape)
        for target, piece in zip(targets, buffer.split_with_sizes(counts), strict=True)
    ]
    plain = [target.detach() if target.requires_grad else target for target in targets]
    torch._foreach_copy_(plain, pieces)  # takes a third of the time of single copies
