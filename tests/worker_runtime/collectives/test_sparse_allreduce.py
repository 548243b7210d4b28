"""The sum and average of sparse tensors."""

import pytest
import torch

from tests.worker_runtime.collectives.worlds import World, Worlds
from worker_runtime.collectives import Reduction, SparseAllreduce
from worker_runtime.operation import Members

PAIR = Members(0, (0, 1), 1)


def make_input(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rank 0 has no elements; the others have one index twice."""
    indices = torch.tensor([[0, rank, 0], [1, 2, 1]])[:, : 3 if rank else 0]
    return torch.sparse_coo_tensor(indices, torch.ones(indices.shape[1], 2).to(dtype), (3, 4, 2), check_invariants=True)


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.AVERAGE], ids=lambda op: op.name)
def test_elements_of_all_ranks_are_added_up(worlds: Worlds, reduction: Reduction) -> None:
    def body(world: World) -> object:
        tensor = make_input(world.rank)
        result = world.run(SparseAllreduce(tensor, reduction, world.all, "sparse_allreduce.x"))
        assert (result.layout, result.is_coalesced(), result.shape) == (torch.sparse_coo, False, tensor.shape)
        assert torch.equal(tensor.to_dense(), make_input(world.rank).to_dense())
        return result.to_dense()

    expected = torch.stack([make_input(rank).to_dense() for rank in range(3)]).sum(0)
    for result in worlds.run(body, size=3):
        torch.testing.assert_close(result, expected / (3 if reduction is Reduction.AVERAGE else 1))


def test_a_gradient_of_an_embedding_is_reduced(worlds: Worlds) -> None:
    def body(world: World) -> object:
        table = torch.nn.Embedding(4, 2, sparse=True)
        table(torch.tensor([world.rank, 3, 3])).sum().backward()
        result = world.run(SparseAllreduce(table.weight.grad, Reduction.AVERAGE, world.all, "sparse_allreduce.x"))
        return result.to_dense()[:, 0].tolist()

    assert worlds.run(body) == [[0.5, 0.5, 0.0, 2.0]] * 2


def test_a_rank_that_has_joined_gives_no_elements_and_counts_in_the_average(worlds: Worlds) -> None:
    def body(world: World) -> object:
        if world.rank == 1:
            world.stand_in(joined=[1])
            return None
        operation = SparseAllreduce(make_input(2), Reduction.AVERAGE, world.all, "sparse_allreduce.x")
        return world.run(operation, joined=[1]).to_dense()

    first, _, last = worlds.run(body, size=3)
    torch.testing.assert_close(first, make_input(2).to_dense() * 2 / 3)
    assert torch.equal(first, last)


def test_shape_and_reduction_must_agree() -> None:
    def ask(*shape: int, reduction: Reduction = Reduction.SUM) -> object:
        tensor = torch.sparse_coo_tensor(
            torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), shape, check_invariants=True
        )
        return SparseAllreduce(tensor, reduction, PAIR, "sparse_allreduce.x").question

    assert ask(3) == ask(3)
    assert len({ask(3), ask(4), ask(3, reduction=Reduction.AVERAGE)}) == 3
