"""How each operation that moves tensors is made of one tensor with one dimension."""

from collections.abc import Callable

import torch

from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.alltoall import Alltoall
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.reducescatter import Reducescatter
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import Reduction

# By the columns of the table in `worker_runtime.collectives.dtypes`.
MAKERS: dict[str, list[Callable[[torch.Tensor, Members], Operation[object]]]] = {
    **{
        column: [lambda x, among, op=op: Allreduce([x], Combination(op), among, "allreduce.x") for op in reductions]
        + [lambda x, among, op=op: Reducescatter([x], Combination(op), among, "reducescatter.x") for op in reductions]
        for column, reductions in {
            "Sum": [Reduction.SUM],
            "Average": [Reduction.AVERAGE],
            "Min, Max": [Reduction.MIN, Reduction.MAX],
            "Product": [Reduction.PRODUCT],
        }.items()
    },
    "Adasum": [lambda x, among: Adasum([x], Combination(Reduction.ADASUM), among, "allreduce.x")],
    "sparse Sum": [lambda x, among: SparseAllreduce(make_sparse(x), Reduction.SUM, among, "sparse_allreduce.x")],
    "sparse Average": [
        lambda x, among: SparseAllreduce(make_sparse(x), Reduction.AVERAGE, among, "sparse_allreduce.x")
    ],
    "moves": [
        lambda x, among: Broadcast([x], 0, among, "broadcast.x"),
        lambda x, among: Allgather([x], among, "allgather.x"),
        lambda x, among: Alltoall(x, None, among, "alltoall.x"),
    ],
}


def make_sparse(values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.arange(len(values)).unsqueeze(0), values, (len(values),), check_invariants=True
    )
