"""Steps that are combined by Adasum."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_parameters
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.errors import HorovodInternalError
from worker_runtime.reduction.adasum import AdasumReducer


def make_reducer(engine: ThreadEngine, parameters: list[torch.Tensor]) -> AdasumReducer:
    named = [(f"p{index}", parameter) for index, parameter in enumerate(parameters)]
    return AdasumReducer(lambda: named, lambda: engine, lambda: 0)


def move(parameters: list[torch.Tensor], by: float) -> str:
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(by)
    return "moved"


def test_parallel_steps_are_averaged(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(2)
        result = make_reducer(engine, parameters).step(lambda: move(parameters, 2.0 * engine.rank + 1))
        assert engine.asked == ["allreduce.optimizer.1.step"] + ["commit"] * world.is_elastic
        return result, [parameter.tolist() for parameter in parameters]

    assert world.run(body) == [("moved", [[3.0] * 4, [4.0] * 4])] * 2


def test_after_a_failure_parameters_are_where_they_were(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(1 + engine.rank)
        with pytest.raises(HorovodInternalError, match="Mismatched"):
            make_reducer(engine, parameters).step(lambda: move(parameters, 1.0))
        return parameters[0].tolist()

    assert world.run(body) == [[1.0] * 4] * 2


def test_a_rank_that_cannot_move_fails_the_others_step_and_the_next_step_is_right(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        (parameter,) = parameters = make_parameters(1)
        reducer = make_reducer(engine, parameters)

        def fail() -> None:
            move(parameters, 5.0)
            if engine.rank:
                raise KeyError("half-way")

        with pytest.raises(KeyError if engine.rank else HorovodInternalError, match="half-way"):
            reducer.step(fail)
        left = parameter.tolist()
        reducer.step(lambda: move(parameters, 1.0))
        return left, parameter.tolist()

    assert world.run(body) == [([1.0] * 4, [2.0] * 4)] * 2


def test_one_ranks_infinity_is_everybodys(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer = make_reducer(engine, [])
        found = []
        for value in (1.0, 0.0, torch.inf, torch.nan):
            gradients = [torch.zeros(2).to_sparse(), torch.full((2,), value if engine.rank else 1.0)]
            reducer.spread_infinity(gradients)
            found.append(all(bool(torch.isfinite(gradient.to_dense()).all()) for gradient in gradients))
        return found

    assert world.run(body) == [[True, True, False, False]] * 2
