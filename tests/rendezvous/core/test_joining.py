"""Who joins waits for the others, for the next generation, or in vain; and some stop the others."""

import pytest

from rendezvous.core.effects import Interrupt, Refuse
from rendezvous.core.events import Joined
from rendezvous.core.joining import join
from rendezvous.core.records import Standing
from rendezvous.core.reports import Report, Wish
from rendezvous.core.state import Phase
from tests.rendezvous.core.commands import parse_worker
from tests.rendezvous.core.transcript import play

PAIR = ("policy min=1 max=3 failures=any", "hosts a:2", "join a:0", "join a:1")
A0 = parse_worker("a:0")


@pytest.mark.parametrize(
    ("wish", "phase"),
    [
        (Wish.BEGIN, Phase.FORMING),
        (Wish.RESIZE, Phase.FORMING),
        (Wish.CONTINUE, Phase.REFORMING),
        (Wish.RESTORE, Phase.REFORMING),
        (Wish.FORM, Phase.REFORMING),
    ],
)
def test_who_cannot_go_on_stops_the_others(wish: Wish, phase: Phase) -> None:
    state, effects = join(play(*PAIR), Joined(A0, 1, Report(wish, "it broke")))
    assert state.phase is phase
    assert effects == ((Interrupt(1, "it broke"),) if phase is Phase.REFORMING else ())


def test_what_it_tells_of_itself_is_kept_until_the_next_generation() -> None:
    report = Report(Wish.CONTINUE, has_state=True, is_blank=True)
    state, _ = join(play(*PAIR), Joined(A0, 1, report))
    record = state.workers[A0.slot]
    assert (record.report, record.has_state, record.is_blank) == (report, True, True)
    after = play(*PAIR, "join a:0 after=1 continue state", "join a:1 after=1 continue")
    assert [(each.report, each.has_state) for each in after.survivors()] == [(None, True), (None, False)]


def test_a_wish_that_the_newest_generation_has_met_is_answered_by_the_notices() -> None:
    state = play(*PAIR)
    assert join(state, Joined(A0, 0, Report(Wish.CONTINUE))) == (state, ())


def test_a_newcomer_waits_without_disturbing_anybody() -> None:
    state = play(*PAIR, "declare a:0", "declare a:1", "hosts a:3", "join a:2")
    assert (state.phase, state.waiting, state.count(Standing.READY)) == (Phase.RUNNING, 0, 1)
    assert play(*PAIR, "declare a:0", "declare a:1", "hosts a:3", "join a:2", "join a:2").counts == state.counts


def test_one_that_is_to_leave_is_told_why() -> None:
    story = (*PAIR, "declare a:0", "declare a:1", "hosts a:3", "hosts a:2")
    state = play(*story)
    leaver = parse_worker("a:2")
    assert join(state, Joined(leaver)) == (state, (Refuse(leaver, "host a offers fewer slots now"),))
