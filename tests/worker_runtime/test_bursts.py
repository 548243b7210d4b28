"""A thousand operations in flight at once: of all forms and dtypes, asked and awaited in another order by each rank."""

import random
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

COUNT = 1000
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)
SHAPES = ((), (1,), (16,), (16,), (3, 5), (0, 4), (300,))
OPS = (hvd.Sum, hvd.Sum, hvd.Average, hvd.Min, hvd.Max)
FORMS = ("allreduce", "allreduce", "allreduce_", "grouped", "broadcast", "allgather")


def make(number: int, rank: int, seed: int) -> tuple[str, int, list[torch.Tensor]]:
    """The form, the op and this rank's tensors of an operation: small whole numbers, so that sums are exact."""
    choice = random.Random(f"{seed} {number}")  # noqa: S311 - no secret
    form, op, dtype = choice.choice(FORMS), choice.choice(OPS), choice.choice(DTYPES)
    shapes = [choice.choice(SHAPES) for _ in range(2 if form == "grouped" else 1)]
    values = torch.Generator().manual_seed(number * 31 + rank)
    if form == "allgather":
        shapes = [(1 + rank, *shape[1:]) for shape in shapes]
    return form, op, [torch.randint(-4, 5, shape, generator=values).to(dtype) for shape in shapes]


def submit(number: int, seed: int) -> Any:  # noqa: ANN401 - whatever stands for an operation in flight
    form, op, (first, *others) = make(number, hvd.rank(), seed)
    name = f"burst.{number}"
    match form:
        case "allreduce":
            return hvd.allreduce_async(first, name=name, op=op)
        case "allreduce_":
            return hvd.allreduce_async_(first, name=name, op=op)
        case "grouped":
            return hvd.grouped_allreduce_async([first, *others], name=name, op=op)
        case "broadcast":
            return hvd.broadcast_async(first, root_rank=number % hvd.size(), name=name)
        case _:
            return hvd.allgather_async(first, name=name)


def burst(seed: int) -> list[list[torch.Tensor]]:
    """What each operation has given to this rank."""
    own = random.Random(f"{seed} {hvd.rank()}")  # noqa: S311 - the same
    order = list(range(COUNT))
    own.shuffle(order)
    handles = {number: submit(number, seed) for number in order}
    own.shuffle(order)
    results = {number: hvd.synchronize(handles[number]) for number in order}
    return [
        [results[number]] if isinstance(results[number], torch.Tensor) else list(results[number])
        for number in range(COUNT)
    ]


def expect(number: int, size: int, seed: int) -> list[torch.Tensor]:
    """The same by torch, in one process."""
    made = [make(number, rank, seed) for rank in range(size)]
    form, op, _ = made[0]
    columns = zip(*(tensors for _, _, tensors in made), strict=True)
    if form == "allgather":
        return [torch.cat(column) for column in columns]
    if form == "broadcast":
        return made[number % size][2]
    combined = []
    for column in columns:
        stack = torch.stack(column)
        if op in (hvd.Min, hvd.Max):
            combined.append(stack.amin(0) if op == hvd.Min else stack.amax(0))
            continue
        total = stack.sum(0)
        if op == hvd.Average:
            total = (total.double() / size).trunc() if not stack.is_floating_point() else total / size
        combined.append(total.to(stack.dtype))
    return combined


@pytest.mark.parametrize(
    ("seed", "size"),
    [(1, 3), *[pytest.param(seed, size, marks=pytest.mark.nightly) for seed, size in ((1, 2), (2, 2), (2, 3))]],
)
def test_a_burst_in_any_order_gives_every_rank_the_right_result_of_each(ranks: RankPool, seed: int, size: int) -> None:
    results = ranks.run(lambda: burst(seed), size=size)
    for number in range(COUNT):
        wanted = expect(number, size, seed)
        for rank in range(size):
            got = results[rank][number]
            assert [tensor.dtype for tensor in got] == [tensor.dtype for tensor in wanted]
            for mine, theirs, right in zip(got, results[0][number], wanted, strict=True):
                assert torch.equal(mine, theirs), f"ranks 0 and {rank} differ in {make(number, 0, seed)}"
                torch.testing.assert_close(mine, right)
