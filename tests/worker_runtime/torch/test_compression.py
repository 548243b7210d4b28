"""What travels is smaller, and what comes back is as it was."""

import pytest
import torch

from worker_runtime.torch.compression import Compression

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.int32, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS], ids=str)
def test_none_sends_the_tensor_itself(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, dtype=dtype)
    sent, context = Compression.none.compress(tensor)
    assert sent is tensor
    assert context is None
    assert Compression.none.decompress(sent, context) is tensor


@pytest.mark.parametrize(
    ("compressor", "smaller"), [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_travel_smaller_and_come_back_as_they_were(
    compressor: type[Compression.fp16], smaller: torch.dtype, dtype: torch.dtype
) -> None:
    sent, context = compressor.compress(torch.tensor([0.5, -3.0], dtype=dtype))
    assert sent.dtype == smaller
    back = compressor.decompress(sent, context)
    assert (back.dtype, back.tolist()) == (dtype, [0.5, -3.0])


@pytest.mark.parametrize("compressor", [Compression.fp16, Compression.bf16])
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_what_is_no_float_travels_as_it_is(compressor: type[Compression.fp16], dtype: torch.dtype) -> None:
    tensor = torch.ones(2, dtype=dtype)
    sent, context = compressor.compress(tensor)
    assert sent is tensor
    assert compressor.decompress(sent, context) is tensor


def test_bfloat16_keeps_the_range_that_float16_loses() -> None:
    large = torch.tensor([1e30])
    assert Compression.fp16.decompress(*Compression.fp16.compress(large)).isinf()
    assert Compression.bf16.decompress(*Compression.bf16.compress(large)).isfinite()
