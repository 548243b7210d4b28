"""Sparse gradients travel as such."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_come_back_sparse_also_on_a_rank_without_a_gradient(world: World, *, as_dense: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        table = torch.nn.Embedding(4, 2, sparse=True)
        dense = torch.zeros(2, requires_grad=True)
        reducer = make_reducer([table.weight, dense], engine, sparse_as_dense=as_dense)
        results = []
        for step in range(5):
            table.weight.grad = dense.grad = None
            if engine.rank == 0 or step == 3:
                (table(torch.tensor([1, engine.rank, 1])).sum() + dense.sum()).backward()
            reducer.synchronize()
            results.append((table.weight.grad.layout, table.weight.grad.to_dense()[:, 0].tolist()))
        gathered = [name for name in engine.asked if name.startswith("allgather")]
        return len(gathered), results, dense.grad.tolist()

    for gathered, results, dense in world.run(body):
        assert gathered == (0 if as_dense else 5)
        alone = (torch.sparse_coo, [0.5, 1.0, 0.0, 0.0])
        assert results[:3] == [alone] * 3
        assert results[3][1] == [0.5, 2.5, 0.0, 0.0]
        assert results[4][1] == alone[1]
        assert dense == [0.5, 0.5]


def test_a_gradient_is_brought_to_the_agreed_number_of_sparse_dimensions(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        (parameter,) = make_parameters(1)
        matrix = torch.zeros(2, 2, requires_grad=True)
        reducer = make_reducer([parameter, matrix], engine)
        dense = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        matrix.grad = dense.to_sparse(1 + engine.rank)
        reducer.synchronize()
        sparse = matrix.grad
        matrix.grad = dense if engine.rank else dense.to_sparse(2)
        reducer.synchronize()
        return sparse.sparse_dim(), sparse.to_dense().tolist(), matrix.grad.to_dense().tolist()

    expected = [[1.0, 0.0], [0.0, 3.0]]
    assert world.run(body) == [(2, expected, expected)] * 2


def test_the_sum_of_sparse_gradients_is_not_divided(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        matrix = torch.zeros(2, 2, requires_grad=True)
        reducer = make_reducer([matrix], engine, how=Combination(Reduction.SUM), wire_dtype=torch.float16)
        matrix.grad = torch.eye(2).to_sparse(1)
        matrix.requires_grad_(requires_grad=False)  # since backward: its optimizer steps all the same
        reducer.synchronize()
        return matrix.grad.dtype, matrix.grad.to_dense().tolist()

    assert world.run(body) == [(torch.float32, [[2.0, 0.0], [0.0, 2.0]])] * 2
