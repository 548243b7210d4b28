"""Pickles of tensors whose dtypes have no class of storages: torch writes such pickles, and cannot load them.

A pickle made here names functions of torch alone, so that each process with torch reads it.
"""

import sys
from typing import Any

_OF_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
_UNLOADABLE = frozenset(
    {
        "torch.uint16",
        "torch.uint32",
        "torch.uint64",
        "torch.float8_e4m3fn",
        "torch.float8_e4m3fnuz",
        "torch.float8_e5m2",
        "torch.float8_e5m2fnuz",
        "torch.float8_e8m0fnu",
    }
)


class _Call:
    """Becomes what a function returns, when the pickle is read.

    Args:
        function: what is called.
        arguments: with which.
    """

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._parts = function, arguments

    def __reduce__(self) -> tuple[Any, Any]:
        return self._parts


def reduce_tensor(value: Any) -> Any:
    """How `pickle` makes the tensor anew, for the `reducer_override` of a pickler; NotImplemented where torch knows."""
    torch: Any = sys.modules.get("torch")  # without it there are no tensors
    if type(value) is not getattr(torch, "Tensor", None) or str(value.dtype) not in _UNLOADABLE:
        return NotImplemented
    if value.layout is not torch.strided or value.is_meta:
        return NotImplemented
    numbers = value.detach().view(getattr(torch, _OF_SIZE[value.dtype.itemsize]))
    if value.requires_grad:
        return torch.Tensor.requires_grad_, (_Call(torch.Tensor.view, numbers, value.dtype),)
    return torch.Tensor.view, (numbers, value.dtype)
