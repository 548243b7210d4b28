"""Sparse allreduce under Horovod's name; what it computes is tested with the collectives."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch.ops import sparse_allreduce_async

pytestmark = pytest.mark.devices


def make_sparse(values: list[float]) -> torch.Tensor:
    indices = torch.arange(len(values)).unsqueeze(0)
    return torch.sparse_coo_tensor(indices, torch.tensor(values), (4,), check_invariants=True)


def test_a_sparse_allreduce_returns_a_function_that_waits_and_can_be_repeated(ranks: RankPool) -> None:
    def body() -> object:
        wait = sparse_allreduce_async(make_sparse([1.0] * (hvd.rank() + 1)), "sum", hvd.Sum)
        average = sparse_allreduce_async(make_sparse([1.0] * (hvd.rank() + 1)), None, hvd.Average)()
        result = wait()
        return wait() is result, result.is_coalesced(), result.to_dense().tolist(), average.to_dense().tolist()

    assert ranks.run(body) == [(True, False, [2.0, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0])] * 2


def test_other_reductions_and_dense_tensors_are_refused(ranks: RankPool) -> None:
    """Horovod does not look, and adds up."""

    def body() -> None:
        for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
            with pytest.raises(ValueError, match="sparse_allreduce 'x': sparse tensors do not support"):
                sparse_allreduce_async(make_sparse([1.0]), "x", op)
        with pytest.raises(ValueError, match="sparse_allreduce 'x': a sparse COO tensor was expected"):
            sparse_allreduce_async(torch.ones(1), "x", hvd.Sum)

    ranks.run(body, size=1)
