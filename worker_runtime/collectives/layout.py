"""How tensors lie in memory: what may be handed to gloo as it is, and what must be copied.

gloo takes the memory of a tensor from its first element on, whatever its strides. So only tensors that are plain are
ever handed to it.
"""

import math
from collections.abc import Sequence

import torch


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
