"""Workers are placed, wait for each other, and become a generation once."""

from rendezvous.core.effects import Launch, Publish
from rendezvous.core.forming import handle
from rendezvous.core.outcome import Cause
from rendezvous.core.state import Phase, Standing
from tests.rendezvous.core.commands import parse_event
from tests.rendezvous.core.transcript import play

PLACED = ("policy size=2", "tick 0", "hosts a:1 b:1")


def test_every_slot_of_the_placement_gets_its_worker() -> None:
    state, effects = handle(play("policy size=3", "tick 0"), parse_event(["hosts", "a:2", "b:2"]))
    assert [str(e.worker) for e in effects if isinstance(e, Launch)] == ["a:0", "a:1", "b:0"]
    assert [e.assignment.rank for e in effects if isinstance(e, Launch)] == [0, 1, 2]
    assert {host: len(slots) for host, slots in state.hosts.items()} == {"a": 2, "b": 1}


def test_the_last_join_publishes_and_no_other() -> None:
    state, effects = handle(play(*PLACED), parse_event(["join", "b:0"]))
    assert effects == ()
    state, (publish,) = handle(state, parse_event(["join", "a:0"]))
    assert isinstance(publish, Publish)
    assert state.phase is Phase.RUNNING
    assert all(record.standing is Standing.MEMBER for record in state.workers.values())


def test_joining_twice_is_joining_once() -> None:
    once = play(*PLACED, "join a:0")
    assert play(*PLACED, "join a:0", "tick 1", "join a:0").waiting_since == once.waiting_since
    assert handle(once, parse_event(["join", "a:0"])) == (once, ())


def test_a_delayed_repetition_of_a_wish_that_was_met_does_not_count_for_the_next_generation() -> None:
    state = play(*PLACED, "join a:0", "join b:0", "join a:0 after=1")
    assert handle(state, parse_event(["join", "b:0"])) == (state, ())
    _, (publish,) = handle(state, parse_event(["join", "b:0", "after=1"]))
    assert isinstance(publish, Publish)
    assert publish.generation.number == 2


def test_a_host_that_fell_silent_is_blamed_before_those_that_wait_for_its_workers() -> None:
    silent = ("report a running a:0", "report b running b:0", "join a:0", "tick 10", "tick 20", "report a running a:0")
    state = play("policy size=2 lease=30 start=30", *PLACED[1:], *silent, "tick 30", "tick 31")
    assert state.outcome is not None
    assert state.outcome.cause is Cause.HOST_LOST
