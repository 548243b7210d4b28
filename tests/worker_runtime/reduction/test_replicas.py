"""Comparing replicas: when, of what, and what is said where they differ."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_parameters, make_reducer, train
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.errors import ReplicasDifferError, WrongArgumentError
from worker_runtime.reduction.replicas import read_interval


def test_each_interval_of_steps_asks_once_and_one_that_differs_is_told_on_all_ranks(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = [*make_parameters(1), torch.ones((), requires_grad=True), torch.zeros(0, requires_grad=True)]
        reducer = make_reducer(parameters, engine, interval=3)
        for _ in range(5):
            train(reducer, parameters)
        with torch.no_grad():
            parameters[1].add_(engine.rank)
        train(reducer, parameters)
        with pytest.raises(ReplicasDifferError, match=r"p1 is not the same on all ranks between step 3 and step 6; "):
            train(reducer, parameters)
        return sum(name.endswith(".replicas") for name in engine.asked)

    assert world.run(body) == [3, 3]


def test_the_interval_is_a_number_of_steps() -> None:
    name = "HVD_CHECK_REPLICAS"
    assert [read_interval({}), read_interval({name: ""}), read_interval({name: " 5 "})] == [0, 0, 5]
    with pytest.raises(WrongArgumentError, match=r"^HVD_CHECK_REPLICAS='often' is not a number of steps; for"):
        read_interval({name: "often"})
