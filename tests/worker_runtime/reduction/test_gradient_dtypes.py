"""Parameters whose gradients have another dtype than they have themselves, which newer torch allows."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_reducer
from tests.worker_runtime.threads import ThreadEngine, World
from tests.worker_runtime.widening import Widen
from worker_runtime.reduction.settings import NoneCompressor

pytestmark = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="needs torch 2.10 or newer")

VALUE = 1.0 + 2.0**-12  # which bfloat16 rounds to 1
EXACT = 1.0 + 2.0**-7  # which it does not round, but 1.5 times it


def make_parameter(shape: tuple[int, ...], dtype: torch.dtype | None = torch.float32) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
    parameter.grad_dtype = dtype
    return parameter


def write_gradient(parameter: torch.nn.Parameter, value: float) -> None:
    """By a backward pass."""
    parameter.grad = None
    (Widen.apply(parameter, torch.float32) * value).sum().backward()


@pytest.mark.parametrize(
    "settings",
    [{}, {"wire_dtype": torch.float32}, {"compressor": NoneCompressor()}],
    ids=["plain", "wire", "compressor"],
)
@pytest.mark.parametrize("shape", [(4,), (100, 100)], ids=["small", "large"])
def test_gradients_are_reduced_in_their_own_dtype(
    world: World, settings: dict[str, object], shape: tuple[int, ...]
) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = [make_parameter(shape), make_parameter(shape, torch.bfloat16), make_parameter(shape, None)]
        reducer = make_reducer(parameters, engine, **settings)
        seen = []
        for step in range(5):
            for parameter in parameters:
                parameter.grad = None
                if engine.rank != step % 3 or parameter is not parameters[0]:  # a missing one counts as zeros
                    write_gradient(parameter, VALUE * (engine.rank + 1))
            reducer.synchronize()
            first, *others = (parameter.grad for parameter in parameters)
            assert (first.dtype, *(other.dtype for other in others)) == (torch.float32, torch.bfloat16, torch.bfloat16)
            seen.append((first.flatten()[0].item(), *(other.flatten()[0].item() for other in others)))
        return seen

    rounded = torch.tensor(1.5 * VALUE).bfloat16().item()
    wanted = [(VALUE * share, rounded, rounded) for share in (1.0, 0.5, 1.5, 1.0, 0.5)]
    assert world.run(body) == [wanted] * 2


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_are_also_reduced_in_their_dtype(world: World, *, sparse_as_dense: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        table = make_parameter((4, 2))
        reducer = make_reducer([table], engine, sparse_as_dense=sparse_as_dense)
        seen = []
        for _ in range(4):
            table.grad = None
            rows = torch.nn.functional.embedding(torch.tensor([1]), table, sparse=True)
            (rows * EXACT * (engine.rank + 1)).sum().backward()
            reducer.synchronize()
            seen.append((table.grad.dtype, table.grad.layout, table.grad.to_dense()[1, 0].item()))
        return seen

    assert world.run(body) == [[(torch.float32, torch.sparse_coo, 1.5 * EXACT)] * 4] * 2


def test_a_program_may_change_the_dtype_between_two_steps(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameter = make_parameter((4,), torch.bfloat16)
        reducer = make_reducer([parameter], engine)
        seen = []
        for step in range(8):
            parameter.grad = None
            parameter.grad_dtype = torch.float32 if step > 3 else torch.bfloat16
            write_gradient(parameter, VALUE)
            reducer.synchronize()
            seen.append(parameter.grad[0].item())
        return seen

    assert world.run(body) == [[1.0] * 4 + [VALUE] * 4] * 2


def test_ranks_with_other_dtypes_of_gradients_are_reported(world: World) -> None:
    def body(engine: ThreadEngine) -> None:
        parameter = make_parameter((4,), (torch.float32, torch.bfloat16)[engine.rank])
        reducer = make_reducer([parameter], engine)
        write_gradient(parameter, VALUE)
        with pytest.raises(RuntimeError, match="Mismatched"):
            reducer.synchronize()

    world.run(body)
