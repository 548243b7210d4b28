"""Sparse allreduce under Horovod's name; what it computes is tested with the collectives."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def make_sparse(values: list[float], shape: tuple[int, ...] = (4,)) -> torch.Tensor:
    indices = torch.arange(len(values)).unsqueeze(0)
    return torch.sparse_coo_tensor(indices, torch.tensor(values), shape, check_invariants=True)


def test_what_it_returns_waits_and_gives_the_result_as_often_as_asked(ranks: RankPool) -> None:
    def body() -> object:
        begun = {op: hvd.sparse_allreduce_async(make_sparse([1.0] * (hvd.rank() + 1)), f"s{op}", op) for op in (1, 0)}
        first, again = begun[1](), begun[1]()
        empty = hvd.sparse_allreduce_async(make_sparse([]), None, hvd.Sum)()
        return (
            (first is again, first.is_coalesced(), first._nnz(), first.to_dense().tolist()),
            begun[0]().to_dense().tolist(),
            (empty.layout == torch.sparse_coo, list(empty.shape), empty._nnz()),
        )

    expected = ((True, False, 3, [2.0, 1.0, 0.0, 0.0]), [1.0, 0.5, 0.0, 0.0], (True, [4], 0))
    assert ranks.run(body) == [expected] * 2


def test_it_works_in_a_set(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 2])
        if not some.included():
            return None
        return hvd.sparse_allreduce_async(make_sparse([1.0]), "x", hvd.Average, some)().to_dense().tolist()

    assert ranks.run(body, size=3) == [[1.0, 0.0, 0.0, 0.0], None, [1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("op", [2, 3, 4, 5])
def test_other_reductions_and_dense_tensors_are_refused(ranks: RankPool, op: int) -> None:
    """Horovod does not look, and adds up."""

    def body() -> object:
        with pytest.raises(ValueError, match="sparse_allreduce 'x': sparse tensors have no"):
            hvd.sparse_allreduce_async(make_sparse([1.0]), "x", op)
        with pytest.raises(ValueError, match="sparse_allreduce 'x': a sparse COO tensor was expected"):
            hvd.sparse_allreduce_async(torch.ones(1), "x", hvd.Sum)

    ranks.run(body, size=1)
