"""After the end nothing changes."""

import pytest

from rendezvous.core.effects import Refuse
from rendezvous.core.finished import handle
from tests.rendezvous.core.commands import parse_event, parse_worker
from tests.rendezvous.core.transcript import play

FINISHED = play("policy size=1", "tick 0", "hosts a:1", "exit a:0 0")


def test_a_late_join_is_refused_with_the_outcome() -> None:
    _, effects = handle(FINISHED, parse_event(["join", "a:0"]))
    assert effects == (Refuse(parse_worker("a:0"), "the job is over: all workers ended well"),)


@pytest.mark.parametrize(
    "event",
    [
        ["report", "a", "running", "a:0"],
        ["exit", "a:0", "1"],
        ["lost", "a", "gone"],
        ["stop", "130", "interrupted"],
        ["tick", "1000"],
        ["hosts", "a:5"],
        ["store", "a:0", "generation=0", "at", "h:1"],
    ],
    ids=str,
)
def test_anything_else_is_ignored(event: list[str]) -> None:
    assert handle(FINISHED, parse_event(event)) == (FINISHED, ())
