"""Gradients that pass through a user's compressor."""

import torch

from tests.worker_runtime.reduction.gradients import begin, list_gradients, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World


class Shifted:
    """A compressor that is none: it sends another number, as another dtype."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Another number."""
        return tensor.double() + 1, 1.0

    @staticmethod
    def decompress(tensor: torch.Tensor, context: float) -> torch.Tensor:
        """The number itself."""
        return tensor - context


def test_a_compressor_of_the_users_handles_each_gradient_by_itself(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, compressor=Shifted, bounds=(32, 32))
        for _ in range(4):
            for parameter in parameters:
                parameter.grad = None
            sum((parameter * (engine.rank + 1)).sum() for parameter in parameters[1:]).backward()
            reducer.synchronize()
        assert all(parameter.grad.dtype == torch.float32 for parameter in parameters)
        return list_gradients(parameters)

    assert world.run(body) == [[[0.0] * 4, [1.5] * 4, [1.5] * 4]] * 2


def test_sparse_gradients_are_compressed_as_dense_ones(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        matrix = torch.zeros(2, 2, requires_grad=True)
        reducer = make_reducer([matrix], engine, compressor=Shifted)
        matrix.grad = (torch.eye(2) * (engine.rank + 1)).to_sparse(1)
        matrix.requires_grad_(requires_grad=False)  # since backward: its optimizer steps all the same
        reducer.synchronize()
        return matrix.grad.layout, matrix.grad.to_dense().tolist()

    assert world.run(body) == [(torch.sparse_coo, [[1.5, 0.0], [0.0, 1.5]])] * 2


def test_a_compressed_gradient_is_sparse_also_on_a_rank_without_one(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        table = torch.nn.Embedding(4, 2, sparse=True)
        reducer = make_reducer([table.weight], engine, compressor=Shifted)
        if engine.rank == 0:
            table(torch.tensor([1])).sum().backward()
        reducer.synchronize()
        return table.weight.grad.layout, table.weight.grad.to_dense()[1].tolist()

    assert world.run(body) == [(torch.sparse_coo, [0.5, 0.5])] * 2


def test_a_missing_gradient_is_compressed_from_zeros_of_their_own(world: World) -> None:
    """The stand-in of an MXNet array of one element is an expanded zero, with strides that MXNet refuses."""
    strides = []

    class Noting(Shifted):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
            strides.append(tensor.stride())
            return Shifted.compress(tensor)

    def body(engine: ThreadEngine) -> None:
        stand_in = torch.zeros(()).expand(1, 1).requires_grad_()
        make_reducer([stand_in], engine, compressor=Noting).synchronize()

    world.run(body)
    assert strides == [(1, 1)] * 2
