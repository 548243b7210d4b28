"""What travels is smaller, and what comes back is as it was."""

import pytest
import torch

from worker_runtime.torch.compression import Compression

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
UNCOMPRESSED = [torch.int32, torch.uint8, torch.bool, torch.complex64]
CASES = [
    *((Compression.none, dtype, dtype) for dtype in (*FLOATS, *UNCOMPRESSED)),
    *((Compression.fp16, dtype, torch.float16) for dtype in FLOATS),
    *((Compression.bf16, dtype, torch.bfloat16) for dtype in FLOATS),
    *((compressor, dtype, dtype) for compressor in (Compression.fp16, Compression.bf16) for dtype in UNCOMPRESSED),
]


@pytest.mark.parametrize(
    ("compressor", "dtype", "travels_as"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_compressed_tensor_is_decompressed_to_its_dtype_and_values(
    compressor: type[Compression.none], dtype: torch.dtype, travels_as: torch.dtype
) -> None:
    tensor = torch.tensor([1, 0], dtype=dtype)
    sent, context = compressor.compress(tensor)
    assert sent.dtype == travels_as
    assert (sent is tensor) == (dtype == travels_as)
    back = compressor.decompress(sent, context)
    assert (back.dtype, back.tolist()) == (dtype, tensor.tolist())


def test_bfloat16_keeps_the_range_that_float16_loses() -> None:
    large = torch.tensor([1e30])
    assert Compression.fp16.decompress(*Compression.fp16.compress(large)).isinf()
    assert Compression.bf16.decompress(*Compression.bf16.compress(large)).isfinite()
