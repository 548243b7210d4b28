"""From parameters and what the ranks find out about their gradients to buckets, each of which is one operation."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import backward, begin, list_gradients, make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.reduction import Settings
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.plan import (
    Negotiation,
    ask_negotiation,
    describe,
    make_buckets,
    read_negotiation,
)


def test_a_parameter_has_its_present_form_and_a_lazy_parameter_has_no_form_yet() -> None:
    parameter = torch.nn.UninitializedParameter()
    entry = Entry(parameter, "p")
    assert entry.form is None
    parameter.materialize((2, 3))
    assert entry.find_form() == (torch.float32, torch.device("cpu"), (2, 3), (3, 1))
    parameter.data = parameter.data.double()
    assert entry.find_form()[0] == torch.float64


def test_order_is_the_first_ranks_sparseness_that_of_any_and_steps_since_discard_the_least(world: World) -> None:
    def body(engine: ThreadEngine) -> Negotiation:
        entries = [Entry(parameter, "") for parameter in make_parameters(4)]
        ready = [entries[2], entries[0]] if engine.rank == 0 else entries
        if engine.rank == 1:
            entries[3].parameter.grad = torch.ones(4).to_sparse()
        comm = Communicator.create(engine, 0)
        return read_negotiation(comm, ask_negotiation(comm, entries, ready, 3 - 10 * engine.rank, ""), 4)

    expected = Negotiation(steps_since_discard=-7, order=(2, 0, 3, 1), sparse_dims=(0, 0, 0, 1), is_of_all=True)
    assert world.run(body) == [expected] * 2


def test_a_negotiation_is_not_of_all_while_a_rank_has_joined(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        entries = [Entry(parameter, "") for parameter in make_parameters(2)]
        negotiations = []
        if engine.rank == 1:
            comm = Communicator.create(engine, 0)
            negotiations.append(read_negotiation(comm, ask_negotiation(comm, entries, entries, 3, ""), 2))
        engine.join()
        return negotiations

    assert world.run(body) == [
        [],
        [Negotiation(steps_since_discard=3, order=(1, 0), sparse_dims=(0, 0), is_of_all=False)],
    ]


def test_a_group_travels_together_whatever_its_dtypes(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = [*make_parameters(3), torch.zeros(4, dtype=torch.float64, requires_grad=True)]
        groups = {parameters[0]: 0, parameters[3]: 0}
        reducer = make_reducer(parameters, engine, groups=groups)
        for _ in range(3):
            backward(parameters, engine.rank + 1)
            reducer.synchronize()
        buckets = [{entry.name for entry in bucket.entries} for bucket in reducer.buckets]
        return {"p0", "p3"} in buckets, len(buckets), list_gradients(parameters)

    assert world.run(body) == [(True, 3, [[1.5] * 4] * 4)] * 2


def test_buckets_follow_the_order_of_readiness_on_the_first_rank(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        reducer, parameters = begin(engine, 3)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = None
            for index in [1, 2, 0] if engine.rank == 0 else [0, 1, 2]:
                parameters[index].sum().backward()
            reducer.synchronize()
        return [entry.name for bucket in reducer.buckets for entry in bucket.entries]

    assert world.run(body) == [["p1", "p2", "p0"]] * 2


def make_entries(count: int = 3) -> list[Entry]:
    return [Entry(parameter, f"p{index}") for index, parameter in enumerate(make_parameters(count))]


def test_a_sparse_gradient_has_a_bucket_of_its_own_unless_it_shall_travel_as_dense() -> None:
    comm = Communicator.create(World(2).engines[0], 0)
    for as_dense, expected in ((False, [["p2", "p0"], ["p1"]]), (True, [["p2", "p1", "p0"]])):
        settings = Settings(sparse_as_dense=as_dense)
        buckets = make_buckets(make_entries(), settings, comm, sparse_dims=[0, 1, 0])
        assert sorted([entry.name for entry in bucket.entries] for bucket in buckets) == sorted(expected)


def test_a_description_differs_with_everything_that_ranks_must_have_alike() -> None:
    shapes = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3).double(), torch.zeros(3, 2).t()]
    texts = {describe([Entry(shape, "p")]) for shape in shapes} | {describe([Entry(shapes[0], "q")])}
    assert len(texts) == 5
    assert describe([Entry(shapes[0], "p")]) == describe([Entry(torch.ones(2, 3), "p")])
    assert describe(make_entries()).startswith("3 gradients from 'p0' [4] to 'p2' [4] with 12 elements (")
    assert describe(make_entries(1)).startswith("gradient 'p0' [4] (")
    assert describe([]) == "no gradients"


def make_bucket(engine: ThreadEngine) -> tuple[Communicator, Bucket]:
    entries = [Entry(parameter, f"p{index}") for index, parameter in enumerate(make_parameters(2))]
    comm = Communicator.create(engine, 0)
    (bucket,) = make_buckets(entries, Settings(), comm, first_number=4)
    for entry in entries:
        entry.parameter.grad = torch.full((4,), engine.rank + 1.0)
    return comm, bucket


def test_a_bucket_is_requested_under_its_number_with_its_note_and_may_be_used_again(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        comm, bucket = make_bucket(engine)
        for _ in range(2):
            contents = bucket.make_contents({})
            bucket.take(contents)
            bucket.submit(comm, contents)
            bucket.finish(comm, contents)
            bucket.install(contents)
        release = contents.handle.release
        return engine.asked, release.members, bucket.entries[0].parameter.grad.tolist(), engine.notes[0]

    for asked, members, gradient, note in world.run(body):
        assert asked == ["allreduce.optimizer.1.bucket.4"] * 2
        assert members == (0, 1)
        assert gradient == [1.5] * 4
        assert note.startswith("2 gradients from 'p1' [4] to 'p0' [4] with 8 elements (")


class StubStream:
    """Notes for whom it waits."""

    def __init__(self) -> None:
        self.awaited: list[object] = []

    def wait_stream(self, other: object) -> None:
        """As torch's."""
        self.awaited.append(other)


def test_on_cuda_a_bucket_waits_for_every_stream_that_has_computed_one_of_its_gradients(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, own = StubStream(), StubStream()
    comm, bucket = make_bucket(world.engines[0])
    contents = bucket.make_contents({})
    for stream in (side, side, own):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda stream=stream: stream)
        bucket.note_stream(contents)
    bucket.take(contents)
    bucket.submit(comm, contents)
    assert set(own.awaited) == {side, own}
    assert not contents.streams


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_gradients_of_several_streams_are_complete_when_they_are_reduced(world: World) -> None:
    def body(engine: ThreadEngine) -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1 << 20, device="cuda")) for _ in range(2)]
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        reducer = make_reducer(parameters, engine)
        totals = []
        for step in range(4):
            losses = []
            for parameter, stream in zip(parameters, streams, strict=True):
                parameter.grad = None
                with torch.cuda.stream(stream):
                    if parameter is parameters[step % 2]:
                        torch.cuda._sleep(50_000_000)
                    losses.append((parameter * (engine.rank + 1)).sum())
            torch.autograd.backward(losses)
            reducer.synchronize()
            totals.append([parameter.grad.unique().tolist() for parameter in parameters])
        return totals

    assert world.run(body) == [[[[1.5], [1.5]]] * 4] * 2
