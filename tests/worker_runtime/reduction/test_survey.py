"""What the ranks find out about each other's gradients."""

import torch

from tests.worker_runtime.reduction.gradients import make_parameters
from tests.worker_runtime.reduction.threads import ThreadExecutor, World
from worker_runtime.reduction.entry import Entry
from worker_runtime.reduction.seat import Seat
from worker_runtime.reduction.survey import Survey, ask_survey


def test_order_is_the_first_ranks_sparseness_that_of_any_and_calm_the_least(world: World) -> None:
    def body(executor: ThreadExecutor) -> Survey:
        entries = [Entry(parameter, "", 1) for parameter in make_parameters(4)]
        ready = [entries[2], entries[0]] if executor.rank == 0 else entries
        if executor.rank == 1:
            entries[3].parameter.grad = torch.ones(4).to_sparse()
        return ask_survey(Seat.take(executor, 0), entries, ready, 3 - 10 * executor.rank, "").read()

    expected = Survey(calm=-7, order=(2, 0, 3, 1), sparse_dims=(0, 0, 0, 1), is_of_all=True)
    assert world.run(body) == [expected] * 2


def test_it_is_not_of_all_while_a_rank_has_joined(world: World) -> None:
    def body(executor: ThreadExecutor) -> object:
        entries = [Entry(parameter, "", 1) for parameter in make_parameters(2)]
        surveys = []
        if executor.rank == 1:
            surveys.append(ask_survey(Seat.take(executor, 0), entries, entries, 3, "").read())
        executor.join()
        return surveys

    assert world.run(body) == [[], [Survey(calm=3, order=(1, 0), sparse_dims=(0, 0), is_of_all=False)]]
