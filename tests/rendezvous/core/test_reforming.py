"""Between an interruption and the next generation: limits for those who report and for those who wait."""

from rendezvous.core.events import Ticked
from rendezvous.core.outcome import Cause
from rendezvous.core.reforming import handle
from rendezvous.core.state import Phase
from tests.rendezvous.core.commands import parse_event
from tests.rendezvous.core.transcript import Teller, play

THREE = (
    "policy min=2 max=3 failures=any lease=5 elastic=20",
    "tick 0",
    "hosts a:3",
    "join a:0",
    "join a:1",
    "join a:2",
)


def tell(*story: str) -> Teller:
    teller = Teller()
    for command in story:
        teller.tell(command)
    return teller


def test_nobody_is_given_up_before_the_deadline_and_all_who_are_late_after_it() -> None:
    story = (*THREE, "exit a:2 1", "join a:0 after=1 continue state", "wait 60")
    assert tell(*story).state.phase is Phase.REFORMING
    late = tell(*story, "wait 0.25").state
    assert (late.phase, late.failures) == (Phase.REFORMING, 2)
    assert [str(record.worker) for record in late.survivors()] == ["a:0"]


def test_those_who_wait_for_others_do_not_wait_for_ever() -> None:
    story = (*THREE, "declare a:0", "declare a:1", "declare a:2", "exit a:2 1", "exit a:1 1")
    waiting = tell(*story, "join a:0 after=1 continue state", "wait 20").state
    assert waiting.outcome is None
    over = tell(*story, "join a:0 after=1 continue state", "wait 20.5").state
    assert over.outcome is not None
    assert (over.outcome.cause, over.outcome.exit_code) == (Cause.TOO_FEW_WORKERS, 75)


def test_a_silent_host_is_lost_before_anybody_is_given_up() -> None:
    state = play(*THREE, "report a", "exit a:2 1", "tick 2", "tick 4", "tick 5")
    state, _ = handle(state, Ticked(5.0))
    assert state.outcome is None
    state = play(*THREE, "report a", "exit a:2 1", "tick 2", "tick 4", "tick 5", "tick 5.25")
    assert state.outcome is not None


def test_a_report_is_taken_in() -> None:
    state = play(*THREE, "exit a:2 1")
    state, _ = handle(state, parse_event(["join", "a:0", "after=1", "continue"], 3))
    assert state.waiting == 1
