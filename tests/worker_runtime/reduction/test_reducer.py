"""Gradient averaging below the optimizer: when buckets are asked for, what parameters get, what is discarded."""

from random import Random

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
from tests.worker_runtime.reduction.programs import make_metric, make_program
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import (
    ChangedGradientError,
    ExcessBackwardError,
    HorovodInternalError,
    SupersededError,
    UnfinishedStepError,
)


def test_a_reducer_requests_nothing_during_backward_in_the_first_steps(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3)
        counts = []
        for _ in range(2):
            sum(parameter.sum() for parameter in parameters).backward()
            counts.append(len(engine.asked))
            reducer.synchronize()
        return counts, engine.asked[0]

    per_step = 1 + 3 + world.is_elastic
    assert world.run(body) == [([0, per_step], "allreduce.optimizer.1.plan")] * 2


def test_buckets_are_requested_as_they_become_ready_in_whatever_order(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=True)
        asked = []
        for index in [2, 1, 0] if engine.rank == 0 else [1, 2, 0]:
            (parameters[index] * (engine.rank + 1)).sum().backward()
            asked.append(list(engine.asked))
        reducer.synchronize()
        return asked, list_gradients(parameters)

    results = world.run(body)
    (first, gradients), (second, same) = results
    assert gradients == same == [[1.5] * 4] * 3
    assert sorted(first[1]) == sorted(second[1])
    assert first[0] != second[0]
    assert [len(names) for names in first] == [len(names) for names in second] == [1, 2, 3]


def test_the_last_bucket_is_under_way_before_any_is_waited_for(world: World) -> None:
    """A waiting thread sends the request of the last bucket, which would else begin after the others have ended."""

    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=True)
        engine.awaited.clear()
        train(reducer, parameters)
        return [name.rpartition(".")[2] for name in engine.awaited[:4]]

    assert world.run(body) == [["2", "0", "1", "2"]] * 2


def test_several_passes_are_summed_locally_before_one_reduction(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, passes=3)
        for _ in range(2):
            reducer.synchronize()
        for parameter in parameters:
            parameter.grad = None
        engine.asked.clear()
        counts = []
        for _ in range(3):
            sum((parameter * (engine.rank + 1)).sum() for parameter in parameters).backward()
            counts.append(len(engine.asked))
        reducer.synchronize()
        return counts, list_gradients(parameters)

    assert world.run(body) == [([0, 0, 2], [[4.5] * 4] * 2)] * 2


@warm_up_and_overlap
def test_fewer_passes_than_announced_are_reduced_when_synchronized(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 1, is_warm=is_warm, passes=3)
        return train(reducer, parameters, engine.rank + 1)

    assert world.run(body) == [[[1.5] * 4]] * 2


def test_the_number_of_passes_may_change_between_steps(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 1, is_warm=True)
        reducer.passes = 2
        for _ in range(2):
            (parameters[0] * (engine.rank + 1)).sum().backward()
        reducer.synchronize()
        return list_gradients(parameters)

    assert world.run(body) == [[[3.0] * 4]] * 2


@warm_up_and_overlap
def test_one_pass_too_many_raises_out_of_backward(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 1, is_warm=is_warm)
        parameters[0].sum().backward()
        with pytest.raises(
            ExcessBackwardError, match=r"Gradients were computed more than backward_passes_per_step .*p0"
        ):
            parameters[0].sum().backward()
        reducer.discard()

    world.run(body)


@pytest.mark.parametrize("number", [0, 1])  # asked for by synchronize(), during backward
@pytest.mark.parametrize("replaces", [False, True])
def test_a_gradient_that_changes_while_it_travels_is_refused(world: World, number: int, *, replaces: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        backward(parameters)
        if replaces:
            parameters[number].grad = parameters[number].grad * 2
        else:
            parameters[number].grad.mul_(2)
        with pytest.raises(ChangedGradientError, match=f"the gradient of p{number} was changed between"):
            reducer.synchronize()
        return [train(reducer, parameters, engine.rank + 1) for _ in range(3)]

    assert world.run(body) == [[[[1.5] * 4] * 2] * 3] * 2


@warm_up_and_overlap
def test_a_parameter_that_is_frozen_after_backward_gets_the_average(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=is_warm)
        backward(parameters, engine.rank + 1)
        parameters[0].requires_grad_(requires_grad=False)
        reducer.synchronize()
        first = list_gradients(parameters)
        rest = [train(reducer, parameters[1:], engine.rank + 1) for _ in range(3)]
        parameters[0].grad = None
        return first, rest, train(reducer, parameters[1:], engine.rank + 1), len(reducer.entries)

    two = [[1.5] * 4] * 2
    assert world.run(body) == [([[1.5] * 4] * 3, [two] * 3, two, 2)] * 2


@warm_up_and_overlap
def test_a_discarded_step_leaves_no_trace(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=is_warm)
        reducer.discard()
        assert engine.asked == []
        used = parameters if engine.rank == 0 else parameters[2:]  # other buckets were asked for on each rank
        sum((parameter * 100).sum() for parameter in used).backward()
        reducer.discard()
        discarded = len(engine.asked)
        train(reducer, parameters, engine.rank + 1)
        return discarded, list_gradients(parameters)

    assert world.run(body) == [(3 if is_warm else 0, [[1.5] * 4] * 3)] * 2


def test_a_rank_that_discards_gradients_every_time_soon_sends_no_gradient(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        counts, values = [], []
        for _ in range(3):
            before = len(engine.asked)
            sum((parameter * 100).sum() for parameter in parameters).backward()
            reducer.discard()
            counts.append(len(engine.asked) - before)
            train(reducer, parameters, engine.rank + 1)
            values.append(parameters[0].grad[0].item())
        return counts, values

    assert world.run(body) == [([2, 0, 0], [1.5] * 3)] * 2


def test_a_rank_that_uses_gradients_another_discards_fails_before_the_commit_or_in_its_next_step(
    world: World,
) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        sum(parameter.sum() for parameter in parameters).backward()
        if engine.rank == 0:
            reducer.discard()
        elif not engine.is_elastic:
            reducer.synchronize()
            backward(parameters)
        with pytest.raises(HorovodInternalError, match=r"every rank waits.*'optimizer.1.plan'"):
            train(reducer, parameters) if engine.rank == 0 else reducer.synchronize()
        return train(reducer, parameters, engine.rank + 1)

    assert world.run(body) == [[[1.5] * 4] * 2] * 2
    assert not world.pending


def test_another_operation_may_come_before_the_step_on_one_rank_and_after_it_on_another() -> None:
    """No bucket waits for step(); but for the commit round of elastic jobs, and for the first steps."""

    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        backward(parameters, engine.rank + 1)
        calls = [reducer.synchronize, lambda: engine.run(make_metric(engine))]
        for call in calls if engine.rank == 0 else reversed(calls):
            call()
        return list_gradients(parameters)

    assert World(2).run(body) == [[[1.5] * 4] * 2] * 2


@warm_up_and_overlap
def test_gradients_that_were_cleared_outside_the_reducer_are_discarded(world: World, *, is_warm: bool) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=is_warm)
        values = []
        for _ in range(3):
            sum((parameter * 100).sum() for parameter in parameters).backward()
            train(reducer, parameters, engine.rank + 1)  # sets .grad = None, as model.zero_grad() does
            values.append(list_gradients(parameters))
        return values

    assert world.run(body) == [[[[1.5] * 4] * 3] * 3] * 2


def test_ranks_with_other_parameters_learn_which_bucket_differs_and_can_continue(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = make_parameters(2)
        other = [parameters[0], torch.zeros(2, requires_grad=True)]
        reducer = make_reducer(parameters if engine.rank == 0 else other, engine)
        with pytest.raises(HorovodInternalError) as caught:
            reducer.synchronize()
        reducer = make_reducer(parameters, engine)
        train(reducer, parameters, engine.rank + 1)
        return str(caught.value), list_gradients(parameters)

    (text, gradients), (same, others) = world.run(body)
    assert text == same
    assert "2 gradients from 'p0' [4] to 'p1' [4] with 8 elements" in text
    assert gradients == others == [[1.5] * 4] * 2


def test_a_rank_may_join_at_any_time(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2)
        values = []
        for epoch in range(3):
            for _ in range(1 + engine.rank * (epoch + 1)):
                train(reducer, parameters, 2.0)
                values.append(parameters[0].grad[0].item())
            engine.join()
        return values

    assert world.run(body) == [[2.0] * 3, [2.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]]


def test_the_loss_is_averaged_as_gradients_are(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        loss = torch.tensor(engine.rank + 1.0)
        mean = make_reducer(make_parameters(1), engine).average(loss)
        total = make_reducer(make_parameters(1), engine, how=Combination(Reduction.SUM)).average(loss)
        return mean.item(), total.item()

    assert world.run(body) == [(1.5, 3.0)] * 2


@warm_up_and_overlap
def test_a_step_whose_gradients_cannot_be_made_on_one_rank_fails_on_all_and_the_next_is_as_ever(
    world: World, *, is_warm: bool
) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=is_warm)

        def step() -> None:
            with reducer.preparing():
                parameters[2].sum().backward()
                with reducer.preparing():
                    sum(parameter.sum() * (1 / engine.rank) for parameter in parameters[:2]).backward()
                reducer.synchronize()

        with pytest.raises((ArithmeticError, HorovodInternalError)) as caught:
            step()
        for _ in range(3):
            train(reducer, parameters, engine.rank + 1.0)
        return str(caught.value), list_gradients(parameters)

    (cause, gradients), (text, same) = world.run(body)
    assert f"failed on rank 0 before anything was sent: ZeroDivisionError: {cause}" in text
    assert gradients == same == [[1.5] * 4] * 3


def test_where_one_rank_fails_after_all_its_gradients_were_made_no_rank_steps(world: World) -> None:
    """The last bucket is held back, so that there is something to fail."""

    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3, is_warm=True)

        def step() -> None:
            with reducer.preparing():
                backward(parameters, 1.0)
                assert 1 / engine.rank
            reducer.synchronize()

        with pytest.raises((ArithmeticError, HorovodInternalError), match=r"^division|failed on rank 0.*division"):
            step()
        return [train(reducer, parameters, engine.rank + 1.0) for _ in range(3)]

    assert world.run(body) == [[[[1.5] * 4] * 3] * 3] * 2


def test_several_optimizers_may_step_in_another_order_on_each_rank_also_on_overlapping_sets() -> None:
    sets = [(0, 1), (1, 2), (0, 2)]

    def body(engine: ThreadEngine) -> object:
        mine = [number for number, ranks in enumerate(sets, 1) if engine.rank in ranks]
        parameters = {number: make_parameters(2) for number in mine}
        reducers = {number: make_reducer(parameters[number], engine, process_set=number) for number in mine}
        for number in mine:
            warm_up(reducers[number], parameters[number], engine)
        chance, values = Random(engine.rank), []  # noqa: S311 - no secret
        for _ in range(6):
            for number in mine:
                backward(parameters[number], engine.rank + 1)
            for number in chance.sample(mine, len(mine)):
                reducers[number].synchronize()
            values.append([list_gradients(parameters[number])[0][0] for number in mine])
        return values

    world = World(3)
    for engine in world.engines:
        for number, ranks in enumerate(sets, 1):
            engine.process_sets.add(number, ranks, number)
    for number, ranks in enumerate(sets, 1):
        assert world.add_set(ranks) == number
    assert world.run(body) == [[[1.5, 2.0]] * 6, [[1.5, 2.5]] * 6, [[2.5, 2.0]] * 6]
    assert not world.pending


def test_ranks_that_wait_for_each_other_in_a_step_get_an_error_and_can_continue(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        parameters[0].sum().backward()
        with pytest.raises(HorovodInternalError, match="every rank waits"):
            engine.run(make_metric(engine)) if engine.rank == 0 else reducer.synchronize()
        steps = 0
        while steps < 3:
            try:
                for parameter in parameters:
                    parameter.grad = None
                reducer.discard()
                train(reducer, parameters, engine.rank + 1)
                engine.run(make_metric(engine))
                steps += 1
            except HorovodInternalError:
                assert steps == 0
        return list_gradients(parameters)

    assert world.run(body) == [[[1.5] * 4] * 2] * 2


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_have_the_expected_averages(seed: int) -> None:
    program = make_program(seed)
    world = World(program.size, is_elastic=program.is_elastic)
    results = world.run(program.play)
    assert all(result == results[0] for result in results)
    torch.testing.assert_close(torch.tensor(results[0]), torch.tensor(program.expect()))
    assert not world.pending


def test_a_reducer_that_comes_in_the_middle_of_anothers_step_is_refused_unless_that_was_discarded(
    world: World,
) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 2, is_warm=True)
        backward(parameters)
        with pytest.raises(UnfinishedStepError, match=r"^the gradient of p0 is being averaged for another"):
            make_reducer(parameters, engine)
        for parameter in parameters:
            parameter.grad = None
        newer = make_reducer(parameters, engine)
        with pytest.raises(SupersededError, match="p0"):
            reducer.synchronize()
        return train(newer, parameters, engine.rank + 1.0)

    assert world.run(body) == [[[1.5] * 4] * 2] * 2
