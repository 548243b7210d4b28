"""The memory of a bucket is used again, unless a program still looks at it."""

from collections.abc import Callable

import pytest
import torch

from tests.worker_runtime.reduction.gradients import backward, begin, list_gradients, make_reducer, train
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.reduction import dense
from worker_runtime.reduction.dense import PACKED_BYTES, Memory, Part, lies_in


@pytest.fixture(params=[0, PACKED_BYTES], ids=["each", "packed"], autouse=True)
def packed_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Below how many bytes gradients are packed; these tests have only small ones."""
    monkeypatch.setattr(dense, "PACKED_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize(
    "view", [lambda grad: grad, lambda grad: grad.view(2, 2), lambda grad: grad.detach()[1:], lambda grad: grad.numpy()]
)
def test_a_gradient_that_a_program_holds_keeps_its_values(
    world: World, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True, bounds=(1000, 1000))
        held = []
        for step in range(3):
            train(reducer, parameters, step + 1)
            held.append(view(parameters[0].grad))
        return [grad.flatten()[0].item() for grad in held]

    assert world.run(body) == [[1.0, 2.0, 3.0]] * 2


def test_a_gradient_lies_in_its_part_if_it_has_the_elements_there_and_not_another_view_of_them() -> None:
    parameter = torch.zeros(2, 3)
    memory = Memory([Part(parameter, parameter.dtype)])
    view, gradient = memory.views[0], memory.show(0)
    assert lies_in(gradient, view)
    gradient.t_()
    assert not lies_in(gradient, view)
    gradient.t_()
    assert lies_in(gradient, view)
    gradient.data = gradient.data.view(torch.int32)
    assert not lies_in(gradient, view)
    gradient.data = torch.zeros(2, 3)
    assert not lies_in(gradient, view)
    assert not lies_in(torch.eye(2, 3).to_sparse(), view)
    assert not lies_in(None, view)
    waves = torch.zeros(2, dtype=torch.complex64)
    assert not lies_in(waves.conj(), waves)


def multiply_data(grad: torch.Tensor) -> None:
    """As a program masks gradients in old code."""
    grad.data = grad.data * 10


def multiply_storage(grad: torch.Tensor) -> None:
    """The same by other means."""
    grad.set_(grad * 10)


def multiply_transposed(grad: torch.Tensor) -> None:
    """The same, and leave other strides."""
    grad.data = (grad.data * 10).t().contiguous().t()


def multiply_in_place(grad: torch.Tensor) -> None:
    """As all programs did before `zero_grad()` forgot gradients: `detach_()` must not refuse."""
    grad.detach_()
    grad.mul_(10)


@pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")  # other strides are what is tried
@pytest.mark.parametrize("forgets", [False, True], ids=["zeroed", "forgotten"])
@pytest.mark.parametrize("change", [multiply_data, multiply_storage, multiply_transposed, multiply_in_place])
def test_gradients_are_averaged_after_a_program_has_given_one_other_memory(
    world: World, change: Callable[[torch.Tensor], None], *, forgets: bool
) -> None:
    """And what it put there is what the optimizer finds."""

    def body(engine: ThreadEngine) -> object:
        parameters = [torch.ones(2, 3, requires_grad=True) for _ in range(3)]
        reducer = make_reducer(parameters, engine, bounds=(40, 40))
        seen = []
        for step in range(8):
            for parameter in parameters:
                if forgets or parameter.grad is None:
                    parameter.grad = None
                else:
                    parameter.grad.zero_()
            sum((parameter * (engine.rank + step)).sum() for parameter in parameters).backward()
            reducer.synchronize()
            averaged = [parameter.grad.unique().tolist() for parameter in parameters]
            change(parameters[step % 3].grad)
            found = [parameter.grad.unique().tolist() for parameter in parameters]
            seen.append((averaged, found[step % 3]))
        return seen

    expected = [([[step + 0.5]] * 3, [10 * (step + 0.5)]) for step in range(8)]
    assert world.run(body) == [expected] * 2


def test_a_gradient_that_has_got_other_memory_before_averaging_does_not_let_the_ranks_drift_apart(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        seen = []
        for _ in range(3):
            backward(parameters, engine.rank + 1)
            for parameter in parameters:
                parameter.grad.data = parameter.grad.data.clone()
            reducer.synchronize()
            seen.append(list_gradients(parameters))
        return seen

    assert world.run(body) == [[[[1.5] * 4] * 2] * 3] * 2


def test_a_change_of_one_step_s_gradient_does_not_stick_to_the_next(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        train(reducer, parameters)
        parameters[0].grad.requires_grad_()
        parameters[0].grad.mark = True
        train(reducer, parameters, engine.rank + 1)
        grad = parameters[0].grad
        return grad.requires_grad, hasattr(grad, "mark"), grad.tolist()

    assert world.run(body) == [(False, False, [1.5] * 4)] * 2


@pytest.mark.parametrize("packed_bytes", [0], indirect=True)
def test_a_variable_that_is_left_over_from_a_loop_costs_one_more_buffer_and_no_allocation(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True, bounds=(1000, 1000))
        places = []
        for _ in range(6):
            train(reducer, parameters)
            left_over = parameters[0].grad
            places.append(left_over.untyped_storage().data_ptr())
        return len(set(places)), len(set(places[::2]))

    assert world.run(body) == [(2, 1)] * 2


@pytest.mark.parametrize("forgets", [False, True], ids=["zeroed", "forgotten"])
def test_after_a_step_there_is_at_most_one_copy_beside_the_gradients(world: World, *, forgets: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 4, is_warm=True, bounds=(1000, 1000))
        for _ in range(4):
            for parameter in parameters if forgets else ():
                parameter.grad = None
            sum(parameter.sum() for parameter in parameters).backward()
            reducer.synchronize()
        memories = [memory for bucket in reducer.buckets for memory in (bucket._memory, bucket._spare) if memory]
        kept = [flat for memory in memories for flat in memory.flats] + [parameter.grad for parameter in parameters]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
        return sum(storages.values()) <= 2 * sum(parameter.nbytes for parameter in parameters), bool(
            reducer._step.contents
        )

    assert world.run(body) == [(True, False)] * 2
