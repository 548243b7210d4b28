"""Where a reducer communicates, from generation to generation."""

import pytest

from tests.worker_runtime.reduction.gradients import (
    SMALL,
    backward,
    begin,
    list_gradients,
    make_parameters,
    train,
    warm_up,
)
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.reduction import GradientReducer, Settings
from worker_runtime.reduction.adasum import AdasumReducer
from worker_runtime.reduction.communicator import Communicator, complete_step_alone


def test_a_new_generation_begins_anew() -> None:
    old, new = World(2), World(3)

    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(2)
        current = old.engines[engine.rank] if engine.rank < 2 else engine
        reducer = GradientReducer(
            lambda: [(f"p{index}", parameter) for index, parameter in enumerate(parameters)],
            lambda: current,
            Settings(bounds=SMALL),
        )
        if engine.rank < 2:
            warm_up(reducer, parameters, current)
            sum(parameter.sum() for parameter in parameters).backward()  # in flight when the generation ends
        current = engine
        for _ in range(3):
            train(reducer, parameters, engine.rank + 1)
        return list_gradients(parameters), engine.asked[0]

    assert new.run(body) == [([[2.0] * 4] * 2, "allreduce.optimizer.1.plan")] * 3


def test_a_place_exists_only_with_others_in_the_same_set() -> None:
    world = World(3)
    for engine in world.engines:
        engine.process_sets.add(1, (0, 2), 0)
        engine.process_sets.add(2, (1,), 1)
    assert Communicator.create(World(1).engines[0], 0) is None
    assert [Communicator.create(engine, 1) is None for engine in world.engines] == [False, True, False]
    assert Communicator.create(world.engines[1], 2) is None


def test_the_first_rank_of_a_set_is_first() -> None:
    world = World(3)
    for engine in world.engines:
        engine.process_sets.add(1, (1, 2), 0)
    communicators = [Communicator.create(engine, 1) for engine in world.engines[1:]]
    assert [comm.is_first for comm in communicators] == [True, False]
    assert [comm.name for comm in communicators] == ["optimizer.1"] * 2
    assert Communicator.create(world.engines[1], 0).name == "optimizer.1"


def test_optimizers_of_one_label_are_counted_by_themselves() -> None:
    engine = World(2).engines[0]
    communicators = [Communicator.create(engine, 0, label) for label in ("a", "", "b", "a")]
    assert [comm.name for comm in communicators] == [
        "optimizer.a.1",
        "optimizer.1",
        "optimizer.b.1",
        "optimizer.a.2",
    ]


@pytest.mark.parametrize("is_elastic", [False, True])
def test_the_steps_of_the_only_rank_reduce_nothing_and_are_committed_too(*, is_elastic: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 1)
        assert train(reducer, parameters, 2.0) == [[2.0] * 4]
        backward(parameters)
        reducer.discard()
        AdasumReducer(lambda: [("p0", parameters[0])], lambda: engine, lambda: 0).step(lambda: None)
        return engine.asked

    assert World(1, is_elastic=is_elastic).run(body) == [["commit"] * 2]


def test_a_step_of_one_rank_or_of_a_process_set_submits_nothing() -> None:
    world = World(3, is_elastic=True)
    for engine in world.engines:
        engine.process_sets.add(1, (1,), 0)
    complete_step_alone(world.engines[1], lambda: 1)
    complete_step_alone(world.engines[0], lambda: 1)
    assert [engine.asked for engine in world.engines] == [[]] * 3
    lone = World(1, is_elastic=True).engines[0]
    lone.process_sets.add(1, (0,), 0)
    complete_step_alone(lone, lambda: 1)
    assert lone.asked == []
