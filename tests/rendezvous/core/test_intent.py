"""What an agent is ordered to do follows from what it reports, not from what it was told before."""

import pytest

from rendezvous.core.events import Reported
from rendezvous.core.intent import reconcile
from rendezvous.core.model import Worker
from tests.rendezvous.core.commands import parse_worker
from tests.rendezvous.core.lines import show_effect
from tests.rendezvous.core.transcript import play

PLACED = ["policy size=3 failures=1", "tick 0", "hosts a:2 b:1"]


@pytest.mark.parametrize(
    ("before", "running", "orders"),
    [
        ([], "a:0 a:1", []),
        ([], "", ["launch a:0", "launch a:1"]),
        ([], "a:1", ["launch a:0"]),
        ([], "a:0 a:1 a:7", ["terminate a:7"]),
        ([], "a:0 a:1#2", ["launch a:1", "terminate a:1#2"]),
        (["exit a:0 0"], "a:1", []),
        (["exit a:0 0"], "a:0 a:1", ["terminate a:0"]),
        (["exit a:0 1"], "a:0 a:1", ["launch a:0#2", "terminate a:0"]),
        (["exit a:0 1"], "a:0#2 a:1", []),
        (["join a:0"], "a:1", []),
        (["join a:0", "join a:1", "join b:0"], "", []),
        (["join a:0", "exit b:0 0"], "a:1", []),
    ],
)
def test_orders_are_the_difference_between_intent_and_report(
    before: list[str], running: str, orders: list[str]
) -> None:
    state = play(*PLACED, *before)
    report = Reported("a", tuple(parse_worker(worker) for worker in running.split()))
    told = [line for effect in reconcile(state, report) for line in show_effect(effect)]
    assert [" ".join(line.split()[:2]) for line in told] == orders


def test_a_worker_that_should_not_be_is_ended_without_grace() -> None:
    (order,) = reconcile(play(*PLACED), Reported("b", (parse_worker("b:0"), parse_worker("b:1"))))
    assert next(show_effect(order)) == "terminate b:1 grace=0  (it is not intended (any more))"


class ReadOnce(tuple[Worker, ...]):
    """A list of workers that nobody may search again and again: with thousands that would take minutes."""

    __slots__ = ()

    def __contains__(self, worker: object) -> bool:
        raise AssertionError(f"searched for {worker}")


def test_a_report_is_compared_without_searching_it_for_each_worker() -> None:
    running = ReadOnce([parse_worker("a:1"), parse_worker("a:7")])
    assert len(reconcile(play(*PLACED), Reported("a", running))) == 2
