"""What needs no other rank: an operation alone, and the calls that are refused before anything is asked."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.worker_runtime.collectives.makers import MAKERS
from tests.worker_runtime.threads import ELEMENTWISE
from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.agreements import AddSet, RemoveSet
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.alltoall import Alltoall
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import SUM, Combination
from worker_runtime.collectives.reducescatter import Reducescatter
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import Reduction

ALONE, PAIR = Members(0, (0,), 0), Members(0, (0, 1), 1)
REDUCTIONS = [*itertools.product((Allreduce, Reducescatter), ELEMENTWISE), (Adasum, Reduction.ADASUM)]
ONE, TRUE, FOREIGN = torch.tensor(1.0), torch.tensor([True]), torch.empty(2, dtype=torch.float4_e2m1fn_x2)
SCALED_MAX, ADASUM = Combination(Reduction.MAX, 1.0, 2.0), Combination(Reduction.ADASUM)


@pytest.mark.parametrize("make", [*itertools.chain(*MAKERS.values())])
def test_an_operation_of_one_rank_returns_a_copy_and_the_number_of_its_rows(
    make: Callable[[torch.Tensor, Members], Operation[object]],
) -> None:
    x = torch.tensor([2.0, 4.0], requires_grad=True)
    operation = make(x, ALONE)
    result, *rows = tree_leaves(operation.finish(None, memoryview(b"")))
    assert operation.payload == b""
    assert result.to_dense().tolist() == [2.0, 4.0]
    assert not result.requires_grad
    assert (result._values() if result.is_sparse else result).data_ptr() != x.data_ptr()
    assert [int(count) for count in rows] == [2] * isinstance(operation, (Allgather, Alltoall))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.float16], ids=str)
@pytest.mark.parametrize(("kind", "reduction"), REDUCTIONS)
def test_a_reduction_alone_scales(kind: type[Allreduce], reduction: Reduction, dtype: torch.dtype) -> None:
    x = torch.tensor([2, 4]).to(torch.float64 if kind is Adasum else dtype)
    (result,) = kind([x], Combination(reduction, 2.0, 0.25), ALONE, "x").finish(None, memoryview(b""))
    assert (result.tolist(), result.dtype, x.tolist()) == ([1, 2], x.dtype, [2, 4])


def test_an_operation_alone_works_in_place_too() -> None:
    x = torch.tensor([2, 4])
    (result,) = Allreduce([x], Combination(Reduction.AVERAGE, 2.0, 0.25), ALONE, "x", [x]).finish(None, memoryview(b""))
    assert result is x
    (result,) = Broadcast([x], 0, ALONE, "x", [x]).finish(None, memoryview(b""))
    assert (result is x, x.tolist()) == (True, [1, 2])


def alltoall(splits: object, tensor: torch.Tensor | None = None) -> Alltoall:
    """Of four rows."""
    return Alltoall(torch.zeros(4) if tensor is None else tensor, splits, PAIR, "alltoall.x")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Allreduce([FOREIGN], SUM, PAIR, "allreduce.x"),
            "'x': .*float4_e2m1fn_x2 do not support sum",
        ),
        (lambda: Allreduce([TRUE], SCALED_MAX, PAIR, "allreduce.x"), "cannot be scaled"),
        (lambda: Allreduce([torch.ones(1)], ADASUM, PAIR, "allreduce.x"), "of its own"),
        (lambda: Allreduce([torch.ones(3)], SUM, PAIR, "allreduce.x", [torch.ones(1).expand(3)]), "clone it"),
        (lambda: Reducescatter([ONE], SUM, PAIR, "reducescatter.x"), r"reducescatter 'x': .*reshape\(1\)"),
        (
            lambda: Reducescatter([torch.ones(2)], ADASUM, PAIR, "reducescatter.x"),
            "reducescatter 'x': .*Adasum is not supported",
        ),
        (lambda: Reducescatter([TRUE], SCALED_MAX, PAIR, "reducescatter.x"), "cannot be scaled"),
        (lambda: Allgather([ONE], PAIR, "allgather.x"), r"allgather 'x': .*reshape\(1\)"),
        (lambda: Allgather([FOREIGN], PAIR, "allgather.x"), "allgather 'x': .*float4_e2m1fn_x2 are not supported"),
        (lambda: Broadcast([FOREIGN], 0, PAIR, "broadcast.x"), "broadcast 'x': .*float4_e2m1fn_x2 are not supported"),
        (lambda: Broadcast([torch.zeros(2)], 0, PAIR, "broadcast.x", [torch.zeros(3)]), "cannot go into"),
        *[
            (
                lambda root=root: Broadcast([torch.zeros(1)], root, PAIR, "broadcast.x"),
                f"broadcast received invalid root rank {root} .*'x'.*; the set's ranks are 0, 1",
            )
            for root in (-1, 2)
        ],
        *[
            (lambda splits=splits: alltoall(splits), f"alltoall 'x': .*{message}")
            for splits, message in (
                ([4], "Number of entries in splits is 1"),
                ([1, 1, 2], "Number of entries in splits is 3"),
                ([], "Number of entries in splits is 0"),
                ([5, -1], "negative"),
                ([2, 3], "Sum of splits entries is 5"),
                ([1, 2], r"add up to 3 of 4 rows.*dropped.*x\[:3\]"),
                ([1.0, 3.0], "give integers"),
                (4, "give integers"),
                (torch.tensor([1.0, 3.0]), "torch.float32"),
                (torch.tensor([[1, 3]]), r"shape \[1, 2\]"),
            )
        ],
        (lambda: alltoall(None, torch.zeros(3)), "no multiple"),
        (lambda: alltoall(None, ONE), r"reshape\(1\)"),
        (lambda: SparseAllreduce(torch.ones(2), Reduction.SUM, PAIR, "s.x"), "sparse COO tensor was expected"),
        (
            lambda: SparseAllreduce(torch.ones(2).to_sparse(), Reduction.MAX, PAIR, "s.x"),
            "do not support max",
        ),
        *[(lambda ranks=ranks: AddSet(ranks, PAIR), "each once") for ranks in ([], [0, 0], [2], [-1, 0])],
        (lambda: RemoveSet(0, PAIR), "cannot be removed"),
    ],
)
def test_a_call_that_has_no_meaning_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
