"""A live generation learns of its store, and may be followed by another."""

import pytest

from rendezvous.core.effects import Announce
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.model import Endpoint
from rendezvous.core.running import handle
from rendezvous.core.state import Phase
from tests.rendezvous.core.commands import parse_event
from tests.rendezvous.core.transcript import play

RUNNING = ("policy size=2", "tick 0", "hosts a:2", "join a:0", "join a:1")


def test_rank_0s_store_is_announced_as_often_as_it_is_told() -> None:
    state = play(*RUNNING)
    event = parse_event(["store", "a:0", "generation=1", "at", "10.0.0.1:4711"])
    assert handle(state, event) == (state, (Announce(1, Endpoint("10.0.0.1", 4711)),))
    assert handle(state, event) == (state, (Announce(1, Endpoint("10.0.0.1", 4711)),))


def test_another_rank_cannot_open_the_store() -> None:
    with pytest.raises(IllegalEventError, match=r"only rank 0 \(a:0\) opens the store"):
        handle(play(*RUNNING), parse_event(["store", "a:1", "generation=1", "at", "10.0.0.1:4711"]))


def test_the_store_of_a_former_generation_is_not_announced() -> None:
    state = play(*RUNNING, "join a:0 after=1", "join a:1 after=1")
    assert handle(state, parse_event(["store", "a:0", "generation=1", "at", "10.0.0.1:4711"])) == (state, ())


def test_a_wish_for_the_next_generation_ends_the_phase_and_a_repeated_old_one_does_not() -> None:
    state = play(*RUNNING)
    assert handle(state, parse_event(["join", "a:1"])) == (state, ())
    assert handle(state, parse_event(["join", "a:1", "after=1"]))[0].phase is Phase.FORMING
