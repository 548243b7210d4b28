"""From gradients to buckets."""

import torch

from tests.worker_runtime.reduction.gradients import backward, begin, list_gradients, make_parameters, make_reducer
from tests.worker_runtime.reduction.threads import ThreadExecutor, World
from worker_runtime.reduction import Settings
from worker_runtime.reduction.entry import Entry
from worker_runtime.reduction.plan import describe, make_buckets
from worker_runtime.reduction.seat import Seat


def test_a_group_travels_together_whatever_its_dtypes(world: World) -> None:
    def body(executor: ThreadExecutor) -> object:
        parameters = [*make_parameters(3), torch.zeros(4, dtype=torch.float64, requires_grad=True)]
        groups = {parameters[0]: 0, parameters[3]: 0}
        reducer = make_reducer(parameters, executor, groups=groups)
        for _ in range(3):
            backward(parameters, executor.rank + 1)
            reducer.synchronize()
        buckets = [{entry.name for entry in bucket.entries} for bucket in reducer.buckets]
        return {"p0", "p3"} in buckets, len(buckets), list_gradients(parameters)

    assert world.run(body) == [(True, 3, [[1.5] * 4] * 4)] * 2


def test_buckets_follow_the_order_of_readiness_on_the_first_rank(world: World) -> None:
    def body(executor: ThreadExecutor) -> object:
        reducer, parameters = begin(executor, 3)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = None
            for index in [1, 2, 0] if executor.rank == 0 else [0, 1, 2]:
                parameters[index].sum().backward()
            reducer.synchronize()
        return [entry.name for bucket in reducer.buckets for entry in bucket.entries]

    assert world.run(body) == [["p1", "p2", "p0"]] * 2


def make_entries(count: int = 3) -> list[Entry]:
    return [Entry(parameter, f"p{index}", 1) for index, parameter in enumerate(make_parameters(count))]


def test_a_sparse_gradient_has_a_bucket_of_its_own_unless_it_shall_travel_as_dense() -> None:
    seat = Seat.take(World(2).executors[0], 0)
    for as_dense, expected in ((False, [["p2", "p0"], ["p1"]]), (True, [["p2", "p1", "p0"]])):
        settings = Settings(sparse_as_dense=as_dense)
        buckets = make_buckets(make_entries(), settings, seat, sparse_dims=[0, 1, 0])
        assert sorted([entry.name for entry in bucket.entries] for bucket in buckets) == sorted(expected)


def test_a_description_differs_with_everything_that_ranks_must_have_alike() -> None:
    shapes = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3).double(), torch.zeros(3, 2).t()]
    texts = {describe([Entry(shape, "p", 1)]) for shape in shapes} | {describe([Entry(shapes[0], "q", 1)])}
    assert len(texts) == 5
    assert describe([Entry(shapes[0], "p", 1)]) == describe([Entry(torch.ones(2, 3), "p", 1)])
    assert describe(make_entries()).startswith("3 gradients from 'p0' [4] to 'p2' [4] with 12 elements (")
    assert describe(make_entries(1)).startswith("gradient 'p0' [4] (")
    assert describe([]) == "no gradients"
