"""Making tensors smaller before they travel, and what they were afterwards.

Whatever has `compress` and `decompress` will do where a compressor is asked for: a class with static methods, as here,
or an object.
"""

from collections.abc import Sequence
from typing import Any

import torch

from worker_runtime.collectives.tensor_operation import check_tensor
from worker_runtime.errors import WrongArgumentError
from worker_runtime.reduction.settings import Compressor, NoneCompressor, check_compression


class Compressed:
    """The tensors of one call, smaller on their way: `Arrays` of the API.

    Args:
        title: of the call, for messages.
        compression: the compressor.

    Raises:
        WrongArgumentError: it is none.
    """

    takes_none = False

    def __init__(self, title: str, compression: Compressor) -> None:
        check_compression(title, compression)
        self._title = title
        self._compression = compression
        self._contexts: list[Any] = []

    def read(self, arrays: Sequence[torch.Tensor], *, in_place: bool) -> Sequence[torch.Tensor]:
        """What travels of each.

        Raises:
            WrongArgumentError: the compressor does not make a tensor of one.
        """
        del in_place  # which no function is that compresses
        compressed = []
        for tensor in arrays:
            check_tensor(self._title, tensor)
            small, context = self._compression.compress(tensor)
            if not isinstance(small, torch.Tensor):
                raise WrongArgumentError(f"compression made {type(small).__name__} of a tensor; it must make a tensor")
            compressed.append(small)
            self._contexts.append(context)
        return compressed

    def wrap(
        self, results: Sequence[torch.Tensor], arrays: Sequence[torch.Tensor], *, in_place: bool
    ) -> Sequence[torch.Tensor]:
        """What each was, of what has come back."""
        del arrays, in_place
        return [
            self._compression.decompress(result, context)
            for result, context in zip(results, self._contexts, strict=True)
        ]


class _CastingCompressor:
    """Sends floating-point tensors as another dtype; integers and complex numbers as they are."""

    _DTYPE: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """The values in the smaller dtype, and the dtype that they had."""
        return (tensor.to(cls._DTYPE), tensor.dtype) if tensor.is_floating_point() else (tensor, None)

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype | None) -> torch.Tensor:
        """The values in the dtype that they had."""
        return tensor if context is None else tensor.to(context)


class FP16Compressor(_CastingCompressor):
    """Sends floating-point tensors as float16: 10 bits of mantissa; above 65504 it is infinity."""

    _DTYPE = torch.float16


class BF16Compressor(_CastingCompressor):
    """Sends floating-point tensors as bfloat16: 7 bits of mantissa, the range of float32. Horovod has none."""

    _DTYPE = torch.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
