"""Pickles of tensors whose dtypes have no class of storages: torch writes such pickles, and cannot load them."""

from typing import Any

import torch

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNLOADABLE = frozenset(
    {
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)


def reduce_tensor(value: Any) -> Any:
    """How `pickle` makes the tensor anew, for the `reducer_override` of a pickler; NotImplemented where torch knows."""
    if type(value) is not torch.Tensor or value.dtype not in _UNLOADABLE:
        return NotImplemented
    if value.layout is not torch.strided or value.is_meta:
        return NotImplemented
    return _view_as, (value.detach().view(_OF_SIZE[value.dtype.itemsize]), value.dtype, value.requires_grad)


def _view_as(numbers: torch.Tensor, dtype: torch.dtype, requires_grad: bool) -> torch.Tensor:  # noqa: FBT001 - of a pickle
    return numbers.view(dtype).requires_grad_(requires_grad)
