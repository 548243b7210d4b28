"""What the calls of a random program are given and must give: made from the seed by plain torch, on one rank alone.

The numbers are such that every order of adding them up is exact, so that results must agree to the last bit, but where
`is_exact` says otherwise.
"""

import random
from collections.abc import Sequence

import torch

from tests.worker_runtime.random_collectives.calls import (
    ADASUM,
    ALLREDUCES,
    AVERAGE,
    GATHERS,
    MAX,
    MIN,
    PRODUCT,
    SCATTERS,
    Call,
    Kind,
)

_REDUCED = (*ALLREDUCES, *SCATTERS)
_COMBINE = {MIN: torch.minimum, MAX: torch.maximum, PRODUCT: torch.mul}  # others add up


def find_dtype(name: str) -> torch.dtype:
    """Of torch."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def is_integer(dtype: torch.dtype) -> bool:
    """Neither fractions nor truth values."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def is_exact(call: Call) -> bool:
    """The result does not depend on how it is computed."""
    if call.kind is Kind.SPARSE_ALLREDUCE or call.kind in _REDUCED:
        has_complex = any(find_dtype(name).is_complex for name in call.dtypes)
        rounds = call.op == AVERAGE and (call.postscale != 1.0 or has_complex or call.kind is Kind.SPARSE_ALLREDUCE)
        return call.op != ADASUM and not rounds
    return True


def make_inputs(seed: int, call: Call, rank: int) -> list[torch.Tensor]:
    """A rank's tensors, dense."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + call.number * 1009 + rank)
    position = call.ranks.index(rank)
    tensors = []
    for index, (name, shape) in enumerate(zip(call.dtypes, call.shapes, strict=True)):
        if call.kind in GATHERS:
            shape = (call.rows[position][index], *shape[1:])  # noqa: PLW2901 - this rank's
        elif call.kind is Kind.ALLTOALL:
            shape = (sum(call.rows[position]), *shape[1:])  # noqa: PLW2901 - this rank's
        values = _make_values(call, find_dtype(name), shape, generator)
        if call.layout == "expanded" and values.dim() and values.shape[0]:
            values = values[:1].expand(values.shape).contiguous()
        tensors.append(values)
    return tensors


def make_object(seed: int, call: Call, rank: int) -> object:
    """What a rank broadcasts or gathers: its bytes are few or many."""
    chance = random.Random(seed * 31 + call.number * 7 + rank)  # noqa: S311 - an object, no secret
    return {"rank": rank, "number": call.number, "bytes": chance.randbytes(chance.choice((0, 10, 1000, 300_000)))}


def make_sparse(seed: int, call: Call, rank: int) -> torch.Tensor:
    """A rank's sparse tensor, in which indices may stand twice."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + call.number * 1009 + rank)
    shape = call.shapes[0]
    count = 0 if 0 in shape else call.rows[call.ranks.index(rank)][0]
    indices = torch.stack([torch.randint(max(extent, 1), (count,), generator=generator) for extent in shape])
    values = torch.randint(-8, 9, (count,), generator=generator).to(find_dtype(call.dtypes[0]))
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def compute(seed: int, call: Call, rank: int) -> list[torch.Tensor]:
    """What a rank must get of tensors; of a sparse allreduce the dense sum, as float64."""
    position = call.ranks.index(rank)
    if call.kind is Kind.SPARSE_ALLREDUCE:
        total = torch.zeros(call.shapes[0], dtype=torch.float64)
        for other in call.ranks:
            if other not in call.absent:
                total += make_sparse(seed, call, other).to(torch.float64).to_dense()
        return [total / call.size if call.op == AVERAGE else total]
    given = {other: make_inputs(seed, call, other) for other in call.ranks if other not in call.absent}
    match call.kind:
        case Kind.BROADCAST:
            return given[call.root]
        case Kind.ALLGATHER | Kind.GROUPED_ALLGATHER:
            return [join(rows) for rows in zip(*given.values(), strict=True)]
        case Kind.ALLTOALL:
            begins = {other: sum(call.rows[call.ranks.index(other)][:position]) for other in call.ranks}
            counts = [call.rows[call.ranks.index(other)][position] for other in call.ranks]
            pieces = [
                given[other][0][begins[other] : begins[other] + count]
                for other, count in zip(call.ranks, counts, strict=True)
            ]
            return [join(pieces)]
    results = [
        reduce(call, [None if other in call.absent else given[other][index] for other in call.ranks])
        for index in range(len(call.dtypes))
    ]
    if call.kind in SCATTERS:
        return [cut_own(result, call.size, position) for result in results]
    return results


def join(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """One after the other along the first dimension, bytes as they are."""
    rows = sum(piece.shape[0] for piece in pieces)
    flat = torch.cat([list_bytes(piece) for piece in pieces])
    return flat.view(pieces[0].dtype).view(rows, *pieces[0].shape[1:])


def list_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its values, row by row."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(-1).view(torch.uint8)


def cut_own(result: torch.Tensor, size: int, position: int) -> torch.Tensor:
    """The rows that belong to a member; the first ones have one more where they cannot be divided evenly."""
    each, surplus = divmod(result.shape[0], size)
    begin = position * each + min(position, surplus)
    return result[begin : begin + each + (position < surplus)]


def reduce(call: Call, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """What allreduce makes of one tensor of each member; None for one that has joined."""
    present = [tensor for tensor in inputs if tensor is not None]
    dtype = present[0].dtype
    if call.op == ADASUM:
        wide = [torch.zeros_like(present[0]) if tensor is None else tensor for tensor in inputs]
        return reduce_adasum([tensor.to(torch.float64) for tensor in wide]).to(dtype)
    wide_dtype = torch.int64 if is_integer(dtype) else torch.float64 if dtype.is_floating_point else dtype
    total = _scale(present[0], call.prescale).to(wide_dtype)
    for tensor in present[1:]:
        total = _COMBINE.get(call.op, torch.add)(total, _scale(tensor, call.prescale).to(wide_dtype))
    if call.op == AVERAGE:
        if is_integer(dtype):
            if call.postscale == 1.0:
                return total.div(call.size, rounding_mode="trunc").to(dtype)
            return (total.to(torch.float64) * call.postscale / call.size).trunc().to(dtype)
        narrow = total.to(torch.float32 if dtype.itemsize < 4 else dtype)
        return (narrow * call.postscale / call.size).to(dtype)
    return _scale(total.to(dtype), call.postscale)


def _scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if factor == 1.0:
        return tensor
    if is_integer(tensor.dtype):
        return (tensor.to(torch.float64) * factor).trunc().to(tensor.dtype)
    return tensor * factor


def reduce_adasum(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Pairwise, in float64; where there are too many for a power of two, the last ones go to the first ones."""
    power = 1 << (len(vectors).bit_length() - 1)
    for surplus in range(power, len(vectors)):
        vectors[surplus - power] = _add_adaptively(vectors[surplus - power], vectors[surplus])
    del vectors[power:]
    while len(vectors) > 1:
        vectors = [_add_adaptively(one, other) for one, other in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _add_adaptively(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    dot, first, second = (one * other).sum(), (one * one).sum(), (other * other).sum()
    factors = [1 - dot / (2 * square) if square > 1e-150 else torch.ones(()) for square in (first, second)]
    return one * factors[0] + other * factors[1]


def _make_values(call: Call, dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    if dtype == torch.bool:
        return draw(0, 1).to(torch.bool)
    is_scaled = call.prescale != 1.0 or call.postscale != 1.0
    if call.kind not in _REDUCED or (is_integer(dtype) and not is_scaled):
        count = dtype.itemsize
        for extent in shape:
            count *= extent
        return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)
    if call.op == ADASUM:
        return torch.randn(shape, generator=generator).to(dtype)
    if call.op == PRODUCT:
        if is_integer(dtype):
            return draw(0, 1).to(dtype)
        return torch.tensor([1.0, -1.0, 2.0, 0.5])[draw(0, 3)].to(dtype)
    least = 0 if dtype == torch.uint8 else -3
    values = draw(least, 3) if call.op in (MIN, MAX) or is_integer(dtype) else draw(-8, 8)
    return values.to(dtype)
