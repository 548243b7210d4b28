"""What a backend is trusted with; gloo does the rest. Pure.

Who does what where UCC or MPI was asked for, by the dtype that travels (a test makes this table anew):

             | allreduce with ucc | moves with ucc | allreduce with mpi | moves with mpi
    ---------|--------------------|----------------|--------------------|---------------
    float16  | gloo               | gloo           | gloo               | gloo
    bfloat16 | ucc                | ucc            | gloo               | gloo
    float32  | ucc                | ucc            | mpi                | mpi
    float64  | ucc                | ucc            | mpi                | mpi
    int8     | ucc                | ucc            | mpi                | mpi
    int16    | gloo               | gloo           | mpi                | mpi
    int32    | ucc                | ucc            | mpi                | mpi
    int64    | ucc                | ucc            | mpi                | mpi
    uint8    | ucc                | ucc            | mpi                | mpi

allreduce is one of Sum, Min, Max and Product; Average travels as a Sum. What is moved (broadcast, allgather, alltoall,
reducescatter) mostly travels as bytes, that is as uint8, whatever its dtype.

UCC's column holds what was found right with UCC 1.8.0 on the CPU. Out of it stays what was found wrong: of float16 an
allreduce silently returned its input, and allgathers of several lengths silently returned garbage. MPI's column is what
torch translates for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from worker_runtime.rendezvous import Backend

_REDUCTIONS = frozenset({dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT})


@dataclass(frozen=True, slots=True)
class Gate:
    """Says what goes through; alike on all ranks, since they call alike.

    backend: whose gate this is.
    dtypes: of what it may reduce and move.
    reductions: how it may reduce.
    """

    backend: Backend
    dtypes: frozenset[torch.dtype]
    reductions: frozenset[dist.ReduceOp.RedOpType] = _REDUCTIONS

    def lets_reduce(self, tensor: torch.Tensor, reduction: dist.ReduceOp.RedOpType) -> bool:
        """Whether an allreduce of such tensors goes through."""
        return reduction in self.reductions and self.lets_move(tensor)

    def lets_move(self, tensor: torch.Tensor) -> bool:
        """Whether a broadcast of such tensors goes through."""
        return tensor.dtype in self.dtypes and tensor.numel() > 0

    def lets_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
        """Whether an allgather of such tensors goes through."""
        return self.lets_move(tensor) and all(output.shape == tensor.shape for output in outputs)

    def lets_exchange(self, tensor: torch.Tensor) -> bool:
        """Whether an alltoall of such tensors goes through; the number of rows may differ between ranks."""
        return tensor.dtype in self.dtypes


UCC = Gate(
    Backend.UCC,
    frozenset({torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64}),
)
MPI = Gate(
    Backend.MPI,
    frozenset({torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}),
)

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


def make_table() -> str:
    """The table of who does what."""
    gates = (UCC, MPI)
    titles = [f"{title} with {gate.backend}" for gate in gates for title in ("allreduce", "moves")]
    rows = [["", *titles]]
    for dtype in TRAVELLING:
        one = torch.ones(1, dtype=dtype, device="cpu")
        row = [str(dtype).removeprefix("torch.")]
        for gate in gates:
            reduces = all(gate.lets_reduce(one, reduction) for reduction in _REDUCTIONS)
            row += [str(gate.backend if lets else Backend.GLOO) for lets in (reduces, gate.lets_move(one))]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-|-".join("-" * width for width in widths), *lines[1:]])
