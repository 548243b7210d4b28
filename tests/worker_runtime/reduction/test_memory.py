"""The memory of a bucket is used again, unless somebody still looks at it."""

from collections.abc import Callable

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_parameters, make_reducer, train, warm_up
from tests.worker_runtime.reduction.threads import ThreadExecutor, World
from worker_runtime.reduction.memory import Memory, Part


@pytest.mark.parametrize("view", [lambda grad: grad, lambda grad: grad.view(2, 2), lambda grad: grad.detach()[1:]])
def test_a_gradient_that_a_program_holds_keeps_its_values(
    world: World, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def body(executor: ThreadExecutor) -> object:
        parameters = make_parameters(2)
        reducer = make_reducer(parameters, executor, bounds=(1000, 1000))
        warm_up(reducer, parameters, executor)
        held = []
        for step in range(3):
            train(reducer, parameters, step + 1)
            held.append(view(parameters[0].grad))
        return [grad.flatten()[0].item() for grad in held]

    assert world.run(body) == [[1.0, 2.0, 3.0]] * 2


def make_memory() -> tuple[list[torch.Tensor], Memory]:
    parameters = [torch.zeros(2, 3), torch.zeros(4, dtype=torch.float64), torch.zeros(0), torch.zeros(3)]
    return parameters, Memory([Part(parameter, parameter.dtype) for parameter in parameters])


def test_each_part_has_a_view_of_the_flat_tensor_of_its_dtype() -> None:
    parameters, memory = make_memory()
    assert [(flat.dtype, flat.numel()) for flat in memory.flats] == [(torch.float32, 9), (torch.float64, 4)]
    assert [view.shape for view in memory.views] == [parameter.shape for parameter in parameters]
    for number, view in enumerate(memory.views):
        view.fill_(number)
    assert memory.flats[0].tolist() == [0.0] * 6 + [3.0] * 3
    assert memory.flats[1].tolist() == [1.0] * 4


def test_who_looks_at_a_part_holds_the_memory_a_gradient_in_its_place_does_not() -> None:
    parameters, memory = make_memory()
    assert not memory.is_held
    assert not memory.holds_gradients
    parameters[0].grad = memory.views[0]
    assert not memory.is_held
    assert memory.holds_gradients
    held = parameters[0].grad
    parameters[0].grad = None
    assert memory.is_held
    assert not memory.holds_gradients
    del held
    assert not memory.is_held
    slice_of_it = memory.views[1][1:]
    assert memory.is_held
    del slice_of_it
    array = memory.views[1].numpy()
    assert memory.is_held
    del array
    assert not memory.is_held


def test_a_variable_that_is_left_over_from_a_loop_costs_one_more_buffer_and_no_allocation(world: World) -> None:
    def body(executor: ThreadExecutor) -> object:
        parameters = make_parameters(2)
        reducer = make_reducer(parameters, executor, bounds=(1000, 1000))
        warm_up(reducer, parameters, executor)
        places = []
        for _ in range(6):
            train(reducer, parameters)
            left_over = parameters[0].grad
            places.append(left_over.untyped_storage().data_ptr())
        return len(set(places)), len(set(places[::2]))

    assert world.run(body) == [(2, 1)] * 2
