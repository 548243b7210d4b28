"""Compression of tensors for the transfer.

A compressor is any object, or class with static methods, that has `compress` and `decompress`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from worker_runtime.collectives.tensor_operation import check_tensor
from worker_runtime.errors import WrongArgumentError
from worker_runtime.reduction.settings import Compressor, NoneCompressor, check_compression


class Compressed:
    """The tensors of one call, compressed for the transfer; implements `api.calls.Arrays`.

    Args:
        title: names the call in error messages.
        compression: the compressor.

    Raises:
        WrongArgumentError: `compression` has no `compress` and `decompress`.
    """

    takes_none = False

    def __init__(self, title: str, compression: Compressor) -> None:
        check_compression(title, compression)
        self._title = title
        self._compression = compression
        self._contexts: list[Any] = []

    def read(self, arrays: Sequence[torch.Tensor], *, in_place: bool) -> Sequence[torch.Tensor]:
        """Compress each tensor.

        Raises:
            WrongArgumentError: the compressor returns something else than a tensor.
        """
        del in_place  # no function in place compresses
        compressed = []
        for tensor in arrays:
            check_tensor(self._title, tensor)
            small, context = self._compression.compress(tensor)
            if not isinstance(small, torch.Tensor):
                raise WrongArgumentError(
                    f"compression.compress returned {type(small).__name__}; it must return a tensor"
                )
            compressed.append(small)
            self._contexts.append(context)
        return compressed

    def wrap(
        self, results: Sequence[torch.Tensor], arrays: Sequence[torch.Tensor], *, in_place: bool
    ) -> Sequence[torch.Tensor]:
        """Decompress each result."""
        del arrays, in_place
        return [
            self._compression.decompress(result, context)
            for result, context in zip(results, self._contexts, strict=True)
        ]


class _CastingCompressor:
    """Sends floating-point tensors in a smaller dtype; integers and complex numbers unchanged."""

    _DTYPE: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor in the smaller dtype, and its original dtype for `decompress`."""
        if tensor.is_floating_point():
            return tensor.to(cls._DTYPE), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in its original dtype."""
        if context is not None:
            return tensor.to(context)
        return tensor


class FP16Compressor(_CastingCompressor):
    """Sends floating-point tensors as float16: 10 bits of mantissa; values above 65504 become infinity."""

    _DTYPE = torch.float16


class BF16Compressor(_CastingCompressor):
    """Sends floating-point tensors as bfloat16: 7 bits of mantissa, the range of float32. Horovod lacks it."""

    _DTYPE = torch.bfloat16


class Compression:
    """The compressors: `none`, `fp16` (float16) and `bf16` (bfloat16). Integers and complex numbers stay unchanged."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
