"""Gradients that are reduced where they lie."""

import torch

from tests.worker_runtime.reduction.gradients import begin, make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction


def test_a_gradient_is_reduced_in_its_own_memory_unless_that_must_be_kept(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, in_place=True)
        seen = []
        for _ in range(4):
            places = [torch.full((4,), float(engine.rank + index)) for index in range(3)]
            for parameter, place in zip(parameters, places, strict=True):
                parameter.grad = place
            for entry in reversed(reducer.entries):
                reducer.record_gradient(entry)
            reducer.synchronize()
            in_place = [parameter.grad is place for parameter, place in zip(parameters, places, strict=True)]
            seen.append((in_place, [parameter.grad.tolist() for parameter in parameters]))
            if engine.is_elastic:
                assert [place[0].item() for place in places] == [engine.rank + index for index in range(3)]
        return seen

    in_place = [not world.is_elastic] * 3
    assert world.run(body) == [[(in_place, [[0.5] * 4, [1.5] * 4, [2.5] * 4])] * 4] * 2


def test_buckets_are_requested_while_gradients_are_still_to_come(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, _ = begin(engine, 3, in_place=True)
        asked = []
        for _ in range(3):
            asked.clear()
            engine.asked.clear()
            for entry in reversed(reducer.entries):
                entry.parameter.grad = torch.ones(4)
                reducer.record_gradient(entry)
                asked.append(len(engine.asked))
            reducer.synchronize()
        return asked

    assert world.run(body) == [[1, 2, 3]] * 2


def test_a_rank_without_a_gradient_counts_as_zeros_and_gets_the_result(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(2)
        how = Combination(Reduction.AVERAGE, 0.5, 2.0)
        reducer = make_reducer(parameters, engine, in_place=True, bounds=(64, 64), how=how)
        seen = []
        for _ in range(3):
            parameters[0].grad = torch.full((4,), 2.0) if engine.rank else None
            parameters[1].grad = torch.full((4,), 4.0)
            reducer.synchronize()
            seen.append([parameter.grad.tolist() for parameter in parameters])
        return seen

    assert world.run(body) == [[[[1.0] * 4, [4.0] * 4]] * 3] * 2
