"""The sum and average of sparse tensors."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Reduction

PAIR = Members(0, (0, 1), 1)


def make_input(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rank 0 has no elements; the others have one index twice."""
    indices = torch.tensor([[0, rank, 0], [1, 2, 1]])[:, : 3 if rank else 0]
    return torch.sparse_coo_tensor(indices, torch.ones(indices.shape[1], 2).to(dtype), (3, 4, 2), check_invariants=True)


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.AVERAGE], ids=lambda op: op.name)
def test_elements_of_all_ranks_are_added_up(reduction: Reduction) -> None:
    def body(engine: ThreadEngine) -> object:
        tensor = make_input(engine.rank)
        result = engine.run(SparseAllreduce(tensor, reduction, engine.all, "sparse_allreduce.x"))
        assert (result.layout, result.is_coalesced(), result.shape) == (torch.sparse_coo, False, tensor.shape)
        assert torch.equal(tensor.to_dense(), make_input(engine.rank).to_dense())
        return result.to_dense()

    expected = torch.stack([make_input(rank).to_dense() for rank in range(3)]).sum(0)
    for result in run(body, size=3):
        torch.testing.assert_close(result, expected / (3 if reduction is Reduction.AVERAGE else 1))


def test_a_rank_that_has_joined_gives_no_elements_and_counts_in_the_average() -> None:
    def body(engine: ThreadEngine) -> object:
        operation = SparseAllreduce(make_input(2), Reduction.AVERAGE, engine.all, "sparse_allreduce.x")
        return engine.run(operation).to_dense()

    first, _, last = run(body, size=3, joined=1)
    torch.testing.assert_close(first, make_input(2).to_dense() * 2 / 3)
    assert torch.equal(first, last)


def test_shape_and_reduction_must_agree() -> None:
    def ask(*shape: int, reduction: Reduction = Reduction.SUM) -> object:
        return SparseAllreduce(torch.zeros(shape).to_sparse(), reduction, PAIR, "sparse_allreduce.x").request

    assert ask(3) == ask(3)
    assert len({ask(3), ask(4), ask(3, reduction=Reduction.AVERAGE)}) == 3
