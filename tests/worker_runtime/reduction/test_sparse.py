"""Sparse gradients travel as such."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import backward, make_parameters, make_reducer, warm_up
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


def look_up(table: torch.nn.Embedding, *, is_used: bool) -> None:
    """Backward through one row of a table, or without it."""
    table.weight.grad = None
    if is_used:
        table(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("used_by", [0, 1], ids=["first rank", "second rank"])
@pytest.mark.parametrize("as_dense", [False, True], ids=["gathered", "as dense"])
def test_a_gradient_that_one_rank_finds_sparse_too_late_for_the_plan_is_dense_on_all(
    world: World, *, used_by: int, as_dense: bool
) -> None:
    def body(engine: ThreadEngine) -> object:
        table = torch.nn.Embedding(4, 2, sparse=True)
        reducer = make_reducer([table.weight], engine, sparse_as_dense=as_dense)
        for used in (False, False, engine.rank == used_by):
            look_up(table, is_used=used)
            reducer.synchronize()
        return table.weight.grad.layout, table.weight.grad[1].tolist()

    assert world.run(body) == [(torch.strided, [0.5, 0.5])] * 2


def test_a_sparse_gradient_is_sparse_in_a_step_of_the_warm_up_without_it(world: World) -> None:
    """SparseAdam refuses dense gradients, and SGD cannot add them to its sparse momentum."""

    def body(engine: ThreadEngine) -> object:
        table = torch.nn.Embedding(4, 2, sparse=True)
        reducer = make_reducer([table.weight], engine)
        layouts = []
        for used in (True, False, True, False):
            reducer.discard()
            look_up(table, is_used=True)
            reducer.discard()
            look_up(table, is_used=used)
            reducer.synchronize()
            layouts.append(table.weight.grad.layout)
        return layouts

    assert world.run(body) == [[torch.sparse_coo] * 4] * 2


def test_a_new_parameter_of_an_overlapped_step_has_a_sparse_gradient_on_all_ranks(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        table, (dense,) = torch.nn.Embedding(4, 2, sparse=True), make_parameters(1)
        table.weight.requires_grad_(requires_grad=False)
        reducer = make_reducer([dense, table.weight], engine)
        warm_up(reducer, [dense], engine)
        table.weight.requires_grad_()
        backward([dense])
        look_up(table, is_used=engine.rank == 1)
        reducer.synchronize()
        return dense.grad.tolist(), table.weight.grad.layout, table.weight.grad.to_dense()[1].tolist()

    assert world.run(body) == [([1.0] * 4, torch.sparse_coo, [0.5, 0.5])] * 2


def test_the_sum_of_sparse_gradients_is_not_divided(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        matrix = torch.zeros(2, 2, requires_grad=True)
        reducer = make_reducer([matrix], engine, how=Combination(Reduction.SUM), wire_dtype=torch.float16)
        matrix.grad = torch.eye(2).to_sparse(1)
        matrix.requires_grad_(requires_grad=False)  # since backward: its optimizer steps all the same
        reducer.synchronize()
        return matrix.grad.dtype, matrix.grad.to_dense().tolist()

    assert world.run(body) == [(torch.float32, [[2.0, 0.0], [0.0, 2.0]])] * 2
