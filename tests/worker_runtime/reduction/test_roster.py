"""Parameters come and go."""

import gc
import weakref

import pytest
import torch

from tests.worker_runtime.reduction.gradients import (
    list_gradients,
    make_parameters,
    make_reducer,
    train,
    warm_up,
)
from tests.worker_runtime.reduction.threads import ThreadExecutor, World
from worker_runtime.reduction.entry import Entry
from worker_runtime.reduction.roster import Roster


@pytest.mark.parametrize("is_warm", [False, True])
def test_parameters_may_be_added_and_frozen(world: World, *, is_warm: bool) -> None:
    def body(executor: ThreadExecutor) -> object:
        parameters = make_parameters(2)
        listed = parameters[:1]
        reducer = make_reducer(listed, executor)
        if is_warm:
            warm_up(reducer, listed, executor)
        listed.append(parameters[1])
        values = []
        for _ in range(4):
            train(reducer, parameters, executor.rank + 1)
            values.append(list_gradients(parameters))
        parameters[0].requires_grad_(requires_grad=False)
        parameters[0].grad = None
        for _ in range(4):
            parameters[1].grad = None
            (parameters[1] * (executor.rank + 1)).sum().backward()
            reducer.synchronize()
            assert parameters[0].grad is None
            values.append(list_gradients(parameters[1:]))
        return values

    assert world.run(body) == [[[[1.5] * 4] * 2] * 4 + [[[1.5] * 4]] * 4] * 2


def test_a_dropped_reducer_no_longer_averages(world: World) -> None:
    def body(executor: ThreadExecutor) -> object:
        (parameter,) = make_parameters(1)
        reducer = make_reducer([parameter], executor)
        gone = weakref.ref(reducer)
        del reducer
        gc.collect()
        parameter.sum().backward()
        return gone() is None, executor.asked

    assert world.run(body) == [(True, [])] * 2


class Listener:
    """Notes whose gradients there are."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def record_gradient(self, entry: Entry) -> None:
        """Note it."""
        self.heard.append(entry.name)


def test_hooks_come_and_go_with_the_parameters_that_require_gradients() -> None:
    parameters = make_parameters(3)
    parameters[2].requires_grad_(requires_grad=False)
    listed = [("a", parameters[0]), ("b", parameters[1]), ("c", parameters[2])]
    listener = Listener()
    roster = Roster(lambda: listed, {parameters[2]: 7}, listener)
    assert roster.update(2)
    assert not roster.update(2)
    entries = list(roster.entries)
    assert [entry.name for entry in entries] == ["a", "b"]
    parameters[2].requires_grad_()
    parameters[1].requires_grad_(requires_grad=False)
    assert roster.update(3)
    assert [(entry.name, entry.passes_left, entry.group) for entry in roster.entries] == [("a", 2, None), ("c", 3, 7)]
    assert roster.entries[0] is entries[0]
    parameters[1].requires_grad_()
    sum(parameter.sum() for parameter in parameters).backward()
    assert sorted(listener.heard) == ["a", "c"]
    roster.begin_step(5)
    assert [entry.passes_left for entry in roster.entries] == [5, 5]
    roster.detach()
    sum(parameter.sum() for parameter in parameters).backward()
    assert len(listener.heard) == 2


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_hook_keeps_neither_its_parameter_nor_its_gradients(world: World, *, is_warm: bool) -> None:
    def body(executor: ThreadExecutor) -> list["weakref.ref[torch.Tensor]"]:
        parameters = make_parameters(2)
        reducer = make_reducer(parameters, executor)
        if is_warm:
            warm_up(reducer, parameters, executor)
        train(reducer, parameters, 1.0)
        return [weakref.ref(parameter) for parameter in parameters]

    kept = world.run(body)
    gc.collect()
    assert [[each() for each in rank] for rank in kept] == [[None, None]] * 2
