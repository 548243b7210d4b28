"""The verdict is passed when nobody is missing, and not before; what it says is published."""

from dataclasses import replace

from rendezvous.core.effects import Effect, Interrupt, Publish
from rendezvous.core.outcome import succeed
from rendezvous.core.publication import chain, move_on, publish_first, publish_when_complete
from rendezvous.core.reports import Decision
from rendezvous.core.state import Phase, State
from tests.rendezvous.core.transcript import play

THREE = ("policy min=2 max=3 failures=any", "hosts a:3", "join a:0", "join a:1")


def test_nobody_is_forgotten_who_was_started() -> None:
    state = play(*THREE)
    assert publish_when_complete(state) == (state, ())
    closed = play("policy min=2 max=3 failures=any per_slot=1", *THREE[1:], "exit a:2 1")
    assert closed.phase is Phase.RUNNING
    assert closed.generation is not None
    assert len(closed.generation.members) == 2


def test_those_who_have_come_can_begin_without_the_others() -> None:
    state, effects = publish_first(play(*THREE))
    (publish,) = effects
    assert isinstance(publish, Publish)
    assert (publish.reason, len(publish.generation.members)) == ("2 of 3 workers have joined", 2)
    assert (state.phase, state.number) == (Phase.RUNNING, 1)


def test_the_verdict_is_passed_when_the_last_survivor_has_reported() -> None:
    story = (*THREE, "join a:2", "exit a:1 1", "join a:2 after=1 continue")
    state = play(*story)
    assert publish_when_complete(state) == (state, ())
    state = play(*story, "join a:0 after=1 continue")
    assert (state.number, state.verdict.decision, state.verdict.survivors) == (2, Decision.RETRY, (0, 2))
    assert (state.resets, state.cause, state.deadline) == (1, None, None)


def test_with_too_few_it_stays_open_until_others_come() -> None:
    story = (*THREE, "join a:2", "declare a:0", "declare a:1", "declare a:2", "exit a:1 1", "exit a:2 1")
    state = play(*story, "join a:0 after=1 continue state")
    assert (state.phase, state.deadline, state.short_since) == (Phase.REFORMING, None, 0)
    state = play(*story, "join a:0 after=1 continue state", "join a:1#2")
    assert (state.phase, state.verdict.decision) == (Phase.RUNNING, Decision.RESTORE)
    assert [record.is_blank for record in state.survivors()] == [False, True]


def test_all_who_call_init_again_do_not_count_as_a_reset() -> None:
    assert play("policy min=1 max=1 failures=any reset=0", "hosts a:1", "join a:0", "join a:0 after=1").resets == 0


def test_steps_follow_one_another_until_the_end_is_decided() -> None:
    def count(state: State) -> tuple[State, tuple[Effect, ...]]:
        return state, (Interrupt(1, "again"),)

    def end(state: State) -> tuple[State, tuple[Effect, ...]]:
        return replace(state, outcome=succeed()), ()

    assert len(chain(play(*THREE), count, count)[1]) == 2
    assert len(chain(play(*THREE), count, end, count)[1]) == 1


def test_where_nothing_has_become_possible_nothing_happens() -> None:
    for story in (THREE, (*THREE, "join a:2"), (*THREE, "join a:2", "exit a:1 1")):
        state = play(*story)
        assert move_on(state) == (state, ())
