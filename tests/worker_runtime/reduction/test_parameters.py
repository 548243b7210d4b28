"""Parameters come and go, and change their form."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from tests.worker_runtime.reduction.gradients import (
    backward,
    begin,
    list_gradients,
    make_parameters,
    make_reducer,
    train,
    warm_up,
    warm_up_and_overlap,
)
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.errors import HorovodInternalError
from worker_runtime.reduction.bucket import Entry
from worker_runtime.reduction.parameters import TrackedParameters


@warm_up_and_overlap
def test_parameters_may_be_added_and_frozen(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(2)
        listed = parameters[:1]
        reducer = make_reducer(listed, engine)
        if is_warm:
            warm_up(reducer, listed, engine)
        listed.append(parameters[1])
        values = [train(reducer, parameters, engine.rank + 1) for _ in range(4)]
        parameters[0].requires_grad_(requires_grad=False)
        parameters[0].grad = None
        for _ in range(4):
            parameters[1].grad = None
            (parameters[1] * (engine.rank + 1)).sum().backward()
            reducer.synchronize()
            assert parameters[0].grad is None
            values.append(list_gradients(parameters[1:]))
        return values

    assert world.run(body) == [[[[1.5] * 4] * 2] * 4 + [[[1.5] * 4]] * 4] * 2


def test_a_dropped_reducer_no_longer_averages(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        (parameter,) = make_parameters(1)
        reducer = make_reducer([parameter], engine)
        gone = weakref.ref(reducer)
        del reducer
        gc.collect()
        parameter.sum().backward()
        return gone() is None, engine.asked

    assert world.run(body) == [(True, [])] * 2


class Listener:
    """Notes whose gradients there are."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.lost: list[str] = []

    def record_gradient(self, entry: Entry) -> None:
        """Note it."""
        self.heard.append(entry.name)

    def supersede(self, name: str) -> None:
        """Note it."""
        self.lost.append(name)


def test_hooks_come_and_go_with_the_parameters_that_require_gradients() -> None:
    parameters = make_parameters(3)
    parameters[2].requires_grad_(requires_grad=False)
    listed = [("a", parameters[0]), ("b", parameters[1]), ("c", parameters[2])]
    listener = Listener()
    tracked = TrackedParameters(lambda: listed, {parameters[2]: 7}, listener)
    assert tracked.update()
    assert not tracked.update()
    entries = list(tracked.entries)
    assert [entry.name for entry in entries] == ["a", "b"]
    parameters[2].requires_grad_()
    parameters[1].requires_grad_(requires_grad=False)
    assert tracked.update()
    assert [(entry.name, entry.group) for entry in tracked.entries] == [("a", None), ("c", 7)]
    assert tracked.entries[0] is entries[0]
    parameters[1].requires_grad_()
    sum(parameter.sum() for parameter in parameters).backward()
    assert sorted(listener.heard) == ["a", "c"]
    tracked.detach()
    sum(parameter.sum() for parameter in parameters).backward()
    assert len(listener.heard) == 2


def test_the_newest_optimizer_takes_a_parameter_over_even_if_it_comes_to_it_later() -> None:
    (shared,) = make_parameters(1)
    listeners = [Listener(), Listener()]
    older, newer = (TrackedParameters(lambda: [("a", shared)], {}, listener) for listener in listeners)
    newer.update()
    older.update()
    assert [listener.lost for listener in listeners] == [["a"], []]
    newest = Listener()
    TrackedParameters(lambda: [("a", shared)], {}, newest).update()
    assert ([listener.lost[-1:] for listener in listeners], newest.lost) == ([["a"], ["a"]], [])


def test_a_parameter_that_has_got_another_form_is_reported_once() -> None:
    parameters = [torch.zeros(2, 3, 4, 4, requires_grad=True), torch.zeros(2, requires_grad=True)]
    tracked = TrackedParameters(
        lambda: [(str(index), parameter) for index, parameter in enumerate(parameters)], {}, Listener()
    )
    tracked.update()
    assert tracked.update_forms()
    assert not tracked.update_forms()
    for change in (
        lambda data: data.double(),
        lambda data: data.to(memory_format=torch.channels_last),
        lambda data: torch.cat([data, data]),
    ):
        parameters[0].data = change(parameters[0].data)
        assert tracked.update_forms()
        assert not tracked.update_forms()
    parameters[0].data = torch.empty_like(parameters[0].data)
    assert not tracked.update_forms()


def double(parameters: list[torch.Tensor]) -> None:
    """As model.double() does."""
    for parameter in parameters:
        parameter.data = parameter.data.double()
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.data.double()


def halve(parameters: list[torch.Tensor]) -> None:
    """As a program that goes over to bfloat16, and forgets its gradients."""
    for parameter in parameters:
        parameter.grad = None
        parameter.data = parameter.data.bfloat16()


def grow(parameters: list[torch.Tensor]) -> None:
    """As a layer that gets more units; in another order of its elements, too."""
    for parameter in parameters:
        parameter.grad = None
        parameter.data = torch.ones(3, 5).t()


def grow_one(parameters: list[torch.Tensor]) -> None:
    """The last of them."""
    grow(parameters[-1:])


def swap(parameters: list[torch.Tensor]) -> None:
    """As a module's conversion does with `set_swap_module_params_on_conversion(True)`: hooks are lost."""
    for parameter in parameters:
        parameter.grad = None
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(parameter.detach().double()))


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
@pytest.mark.parametrize("change", [double, halve, grow, grow_one, swap])
def test_gradients_are_averaged_in_their_new_form_after_parameters_have_changed_theirs(
    world: World, change: Callable[[list[torch.Tensor]], None], steps: int
) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = [torch.nn.Parameter(parameter.detach()) for parameter in make_parameters()]
        reducer = make_reducer(parameters, engine)
        fine = 2.0**-30  # which a float loses beside the one
        seen = []
        for step in range(steps + 4):
            if step == steps:
                change(parameters)
            train(reducer, parameters, engine.rank + 1.0 + (fine if parameters[0].dtype == torch.float64 else 0.0))
            assert all(parameter.grad.shape == parameter.shape for parameter in parameters)
            assert all(parameter.grad.stride() == parameter.stride() for parameter in parameters)
            seen.append([parameter.grad.unique().tolist() for parameter in parameters])
        assert all(parameter.grad.dtype == parameter.dtype for parameter in parameters)
        is_overlapped = all(entry.bucket is not None for entry in reducer.entries)
        return seen, is_overlapped

    after = 1.5 + (2.0**-30 if change in {double, swap} else 0.0)
    assert world.run(body) == [([[[1.5]] * 3] * steps + [[[after]] * 3] * 4, True)] * 2


def test_gradients_that_are_accumulated_while_a_parameter_changes_its_dtype_are_averaged(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, passes=2)
        for _ in range(3):
            backward(parameters, engine.rank)
            sum(parameter.sum() for parameter in parameters).backward()
            reducer.synchronize()
        backward(parameters, engine.rank)
        double(parameters)
        sum(parameter.sum() for parameter in parameters).backward()
        reducer.synchronize()
        return [(parameter.grad.dtype, parameter.grad.tolist()) for parameter in parameters]

    assert world.run(body) == [[(torch.float64, [1.5] * 4)] * 3] * 2


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("change", [double, grow, grow_one])
def test_parameters_changed_on_one_rank_raise_on_all_until_all_have_the_change(
    world: World, change: Callable[[list[torch.Tensor]], None], steps: int
) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3)
        for _ in range(steps):
            train(reducer, parameters)
        if engine.rank == 0:
            change(parameters)
        for _ in range(2):
            with pytest.raises(HorovodInternalError, match=r"Mismatched (data types|ALLREDUCE tensor shapes|settings)"):
                train(reducer, parameters)
        if engine.rank == 1:
            change(parameters)
        for _ in range(4):
            train(reducer, parameters, engine.rank + 1.0)
        return [parameter.grad.unique().tolist() for parameter in parameters]

    assert world.run(body) == [[[1.5]] * 3] * 2


@warm_up_and_overlap
def test_a_hook_keeps_neither_its_parameter_nor_its_gradients(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> list["weakref.ref[torch.Tensor]"]:
        reducer, parameters = begin(engine, 2, is_warm=is_warm)
        train(reducer, parameters, 1.0)
        return [weakref.ref(parameter) for parameter in parameters]

    kept = world.run(body)
    gc.collect()
    assert [[each() for each in rank] for rank in kept] == [[None, None]] * 2
