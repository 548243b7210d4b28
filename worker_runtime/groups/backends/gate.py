"""What UCC is trusted with; gloo does the rest. Pure.

Who does what where UCC was asked for, by the dtype that travels (a test makes this table anew):

             | allreduce | moves
    ---------|-----------|------
    float16  | gloo      | gloo
    bfloat16 | ucc       | ucc
    float32  | ucc       | ucc
    float64  | ucc       | ucc
    int8     | ucc       | ucc
    int16    | gloo      | gloo
    int32    | ucc       | ucc
    int64    | ucc       | ucc
    uint8    | ucc       | ucc

allreduce is one of Sum, Min, Max and Product; Average travels as a Sum. What is moved (broadcast, allgather, alltoall,
reducescatter) mostly travels as bytes, that is as uint8, whatever its dtype.

The table holds what was found right with UCC 1.8.0 on the CPU. Out of it stays what was found wrong: of float16 an
allreduce silently returned its input, and allgathers of several lengths silently returned garbage.

The answers are alike on all ranks, since they call alike.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from worker_runtime.rendezvous import Backend

_REDUCTIONS = frozenset({dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT})
_DTYPES = frozenset({torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64})

# What travels: see `collectives.dtypes` for what is made of the other dtypes before.
TRAVELLING = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
)


def lets_reduce(tensor: torch.Tensor, reduction: dist.ReduceOp.RedOpType) -> bool:
    """Whether an allreduce of such tensors goes through."""
    return reduction in _REDUCTIONS and lets_move(tensor)


def lets_move(tensor: torch.Tensor) -> bool:
    """Whether a broadcast of such tensors goes through."""
    return tensor.dtype in _DTYPES and tensor.numel() > 0


def lets_gather(outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
    """Whether an allgather of such tensors goes through."""
    return lets_move(tensor) and all(output.shape == tensor.shape for output in outputs)


def lets_exchange(tensor: torch.Tensor) -> bool:
    """Whether an alltoall of such tensors goes through; the number of rows may differ between ranks."""
    return tensor.dtype in _DTYPES


def make_table() -> str:
    """The table of who does what."""
    rows = [["", "allreduce", "moves"]]
    for dtype in TRAVELLING:
        one = torch.ones(1, dtype=dtype, device="cpu")
        reduces = all(lets_reduce(one, reduction) for reduction in _REDUCTIONS)
        answers = [str(Backend.UCC if lets else Backend.GLOO) for lets in (reduces, lets_move(one))]
        rows.append([str(dtype).removeprefix("torch."), *answers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-|-".join("-" * width for width in widths), *lines[1:]])
