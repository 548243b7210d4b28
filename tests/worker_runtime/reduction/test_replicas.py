"""The check of replicas: after which steps it compares, which tensors, and what its error says."""

import re
from typing import Any

import pytest
import torch

from tests.worker_runtime.reduction.bits import flip_bit
from tests.worker_runtime.reduction.gradients import make_parameters, make_reducer, train
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.coordination.operation import Members
from worker_runtime.errors import ReplicasDifferError, StepRevokedError, WrongArgumentError
from worker_runtime.reduction.adasum import AdasumReducer
from worker_runtime.reduction.replicas import ReplicaCheck, read_interval


def test_replicas_are_compared_once_in_an_interval_and_a_difference_raises_on_all_ranks(world: World) -> None:
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


@pytest.mark.parametrize("kind", ["average", "Adasum"])
@pytest.mark.parametrize("revoked", [0, 2])
def test_a_step_revoked_after_the_comparison_on_one_rank_alone_counts_once_on_all_ranks(
    kind: str, revoked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(1)
        named = [("p0", make_parameters(1)[0])]
        reducer = make_reducer(parameters, engine, interval=2)
        adasum = AdasumReducer(lambda: named, lambda: engine, lambda: 0, None, ReplicaCheck(lambda: named, interval=2))
        for number in range(6):
            if number == revoked:
                next_call = "submit" if kind == "Adasum" else "complete_step"  # after the comparison
                revoke(engine, next_call if engine.rank == 0 else "wait", monkeypatch)
            if kind == "Adasum":
                adasum.step(lambda: None)
            else:
                train(reducer, parameters)
        return engine.asked.count("commit"), engine.generation

    assert World(2, is_elastic=True).run(body) == [(6, 2), (6, 2)]


def revoke(engine: ThreadEngine, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one call of an engine raise StepRevokedError, as after a loss: the next generation has the same members."""
    plain = getattr(engine, call)

    def raise_once(argument: Any, **settings: bool) -> Any:
        is_commit = isinstance(argument, Members)
        name = "" if is_commit else (argument.operation if call == "wait" else argument).request.name
        if not is_commit and not name.endswith(".replicas" if call == "wait" else ".step"):
            return plain(argument, **settings)
        if call == "wait":
            plain(argument)
        monkeypatch.setattr(engine, call, plain)
        engine.generation += 1
        raise StepRevokedError

    monkeypatch.setattr(engine, call, raise_once)


def test_the_interval_is_a_number_of_steps() -> None:
    name = "HVD_CHECK_REPLICAS"
    assert [read_interval({}), read_interval({name: ""}), read_interval({name: " 5 "})] == [0, 0, 5]
    with pytest.raises(WrongArgumentError, match=r"^HVD_CHECK_REPLICAS='often' is not a number of steps; for"):
        read_interval({name: "often"})


@pytest.mark.parametrize(
    ("kind", "name"), [("parameter", "p1"), ("state", "the optimizer's state of p1")], ids=["parameter", "state"]
)
def test_the_rank_that_differs_from_most_others_is_named(kind: str, name: str) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(3)
        state = {parameter: {"step": 1, "mean": torch.ones(5)} for parameter in parameters}
        check = ReplicaCheck(
            lambda: [(f"p{index}", each) for index, each in enumerate(parameters)], 1, state.__getitem__
        )
        reducer = make_reducer(parameters, engine, check=check)
        train(reducer, parameters)
        if engine.rank == 2:
            flip_bit(parameters[1] if kind == "parameter" else state[parameters[1]]["mean"], 77)
        with pytest.raises(ReplicasDifferError) as caught:
            train(reducer, parameters)
        return str(caught.value)

    where = r"\(it is another one on rank 2 than on the 3 others\)"
    expected = re.compile(
        rf"the replicas differ: {name} is not the same on all ranks after step 1 {where}; look for .*"
    )
    assert all(expected.fullmatch(message) for message in World(4).run(body))


def test_a_difference_between_two_ranks_names_no_rank_and_a_joined_rank_is_not_compared() -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(1)
        reducer = make_reducer(parameters, engine, interval=1)
        train(reducer, parameters)
        if engine.rank == 2:
            engine.join()
            return ""
        if engine.rank == 1:
            flip_bit(parameters[0], 5)
        with pytest.raises(ReplicasDifferError, match=r"p0 is not the same on all ranks after step 1; ") as caught:
            train(reducer, parameters)
        engine.join()
        return str(caught.value)

    first, second, _ = World(3).run(body)
    assert first == second
