"""Workers are started where there is room for them, ended where they are wanted no more, and agents let go."""

from dataclasses import replace

from rendezvous.core.effects import Dismiss, Effect, Launch, Refuse, Terminate
from rendezvous.core.events import HostsChanged
from rendezvous.core.records import Standing
from rendezvous.core.staffing import explain_removal, find_newcomers, retire, staff
from rendezvous.core.state import State
from tests.rendezvous.core.commands import parse_event, parse_worker
from tests.rendezvous.core.transcript import play

PAIR = ("policy min=1 max=3 failures=any", "hosts a:1 b:1", "join a:0", "join b:0")
DECLARED = (*PAIR, "declare a:0", "declare b:0")


def offer(state: State, *hosts: str) -> tuple[State, tuple[Effect, ...]]:
    event = parse_event(["hosts", *hosts])
    assert isinstance(event, HostsChanged)
    return staff(replace(state, offered=event.hosts))


def launched(effects: tuple[Effect, ...]) -> list[str]:
    return [str(effect.worker) for effect in effects if isinstance(effect, Launch)]


def test_room_is_filled_in_the_order_offered_up_to_the_most() -> None:
    _, effects = offer(play(*DECLARED), "a:1", "c:2", "b:1")
    assert launched(effects) == ["c:0"]


def test_nobody_is_started_whom_nobody_could_take_in() -> None:
    assert offer(play(*PAIR), "a:1", "b:1", "c:1")[1] == ()
    assert offer(play(*PAIR, "declare a:0"), "a:1", "b:1", "c:1")[1] == ()
    assert launched(offer(play(*DECLARED), "a:1", "b:1", "c:1")[1]) == ["c:0"]
    limited = play("policy min=1 max=3 failures=any reset=0", *DECLARED[1:])
    assert offer(limited, "a:1", "b:1", "c:1")[1] == ()


def test_what_is_staffed_is_not_staffed_again() -> None:
    state, _ = offer(play(*DECLARED), "a:1", "b:1", "c:1")
    assert staff(state) == (state, ())


def test_once_somebody_has_ended_well_nobody_is_started() -> None:
    assert offer(play(*DECLARED, "exit a:0 0"), "a:1", "b:1", "c:1")[1] == ()


def test_a_slot_in_which_a_worker_has_ended_well_stays_free() -> None:
    state = play(*DECLARED, "hosts a:1 b:1 c:1", "exit c:0 0")
    assert staff(state)[1] == ()


def test_newcomers_without_a_slot_are_ended_and_their_agent_is_let_go_afterwards() -> None:
    state = play(*DECLARED, "hosts a:1 b:1 c:1", "join c:0")
    state, effects = offer(state, "a:1", "b:1")
    assert [type(effect) for effect in effects] == [Refuse, Terminate]
    assert state.workers[parse_worker("c:0").slot].standing is Standing.LEAVING
    assert "c" in state.hosts
    ended = play(*DECLARED, "hosts a:1 b:1 c:1", "join c:0", "hosts a:1 b:1", "exit c:0 -15")
    assert "c" not in ended.hosts
    _, effects = offer(play(*DECLARED, "hosts a:1 b:1 c:1", "exit c:0 0"), "a:1", "b:1")
    assert [effect.host for effect in effects if isinstance(effect, Dismiss)] == ["c"]


def test_members_stay_until_a_commit_even_where_nothing_is_offered() -> None:
    state, effects = offer(play(*DECLARED), "c:1")
    assert launched(effects) == ["c:0"]
    assert not any(isinstance(effect, Terminate) for effect in effects)
    assert [str(each.worker) for each in state.survivors()] == ["a:0", "b:0"]


def test_a_retired_worker_that_has_not_joined_has_nothing_to_be_refused() -> None:
    state = play(*DECLARED, "hosts a:1 b:1 c:1")
    (newcomer,) = find_newcomers(state)
    state, effects = retire(state, [newcomer], "enough")
    assert effects == (Terminate(newcomer.worker, 5.0, "enough"),)
    assert find_newcomers(state) == ()


def test_why_a_slot_is_not_used_any_more() -> None:
    state = play(*DECLARED, "hosts a:2")
    assert explain_removal(state, parse_worker("b:0").slot) == "host b is no longer listed"
    assert explain_removal(state, parse_worker("a:7").slot) == "host a offers fewer slots now"


def test_before_the_first_generation_all_are_newcomers() -> None:
    state = play("policy min=1 max=3 failures=any", "hosts a:2", "join a:0")
    assert [str(each.worker) for each in find_newcomers(state)] == ["a:0", "a:1"]
