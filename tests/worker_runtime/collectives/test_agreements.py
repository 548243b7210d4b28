"""Operations without tensors: what they ask, and what they give."""

import pytest

from tests.worker_runtime.collectives.ways import run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.agreements import AddSet, Barrier, CommitRound, Join, RemoveSet
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import Kind, Release

PAIR = Members(0, (0, 1), 1)


def release(operation: Operation[object], members: tuple[int, ...] = (0, 1), value: int = 0) -> Release:
    return Release(0, operation.request, members, value=value)


@pytest.mark.parametrize(
    ("operation", "kind", "name"),
    [
        (Barrier(PAIR), Kind.BARRIER, "barrier"),
        (Join(PAIR), Kind.JOIN, "join"),
        (AddSet([1, 0], PAIR), Kind.ADD_SET, "add_process_set"),
        (RemoveSet(3, PAIR), Kind.REMOVE_SET, "remove_process_set"),
        (CommitRound(PAIR), Kind.COMMIT, "commit"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_an_agreement_is_requested_under_its_name_and_carries_no_payload(
    operation: Operation[object], kind: Kind, name: str
) -> None:
    assert (operation.request.signature.kind, operation.request.name, operation.title) == (kind, name, name)
    assert (operation.payload, operation.start(None, release(operation))) == (b"", ())


def test_agreements_run_on_real_ranks() -> None:
    def body(engine: ThreadEngine) -> object:
        return [engine.run(operation) for operation in (Barrier(engine.all, "barrier.x"), CommitRound(engine.all))]

    assert run(body) == [[None, None]] * 2


def test_a_join_gives_the_rank_that_came_last() -> None:
    join = Join(PAIR)
    assert join.finish(release(join, value=1), memoryview(b"")) == 1
    alone = Join(Members(0, (0,), 0))
    assert alone.finish(release(alone, members=(0,)), memoryview(b"")) == 0


def test_a_process_set_is_requested_by_its_ranks_in_order() -> None:
    operation = AddSet([1, 0], PAIR)
    assert operation.sizes == (0, 1)
    assert operation.request == AddSet([0, 1], PAIR).request
    assert operation.request != AddSet([0], PAIR).request
    assert operation.finish(release(operation, value=5), memoryview(b"")) == 5


def test_a_process_set_is_removed_by_its_number() -> None:
    operation = RemoveSet(3, PAIR)
    assert operation.sizes == (3,)
    assert operation.request.process_set == 0
    assert operation.request != RemoveSet(4, PAIR).request
    assert operation.finish(release(operation), memoryview(b"")) is None
