"""What a state counts along, and how its records are found."""

import copy
from dataclasses import replace

import pytest

from rendezvous.core.state import Standing, State
from tests.rendezvous.core.commands import parse_worker
from tests.rendezvous.core.transcript import play

PLACED = play("policy size=3", "tick 5", "hosts a:2 b:1")


def stand(state: State, worker: str, standing: Standing) -> State:
    record = state.workers[parse_worker(worker).slot]
    return state.with_records([replace(record, standing=standing)])


def names(records: tuple[object, ...]) -> list[str]:
    return [str(getattr(record, "worker", record)) for record in records]


def test_records_are_told_in_rank_order_by_standing_and_by_host() -> None:
    state = stand(stand(PLACED, "b:0", Standing.WAITING), "a:0", Standing.ENDED)
    assert names(state.alive()) == ["a:1", "b:0"]
    assert names(state.standing(Standing.ENDED, Standing.WAITING)) == ["a:0", "b:0"]
    assert names(state.on("a")) == ["a:0", "a:1"]
    assert names(state.on("b")) == ["b:0"]


@pytest.mark.parametrize("former", Standing)
@pytest.mark.parametrize("latter", Standing)
def test_counts_follow_every_change_of_standing(former: Standing, latter: Standing) -> None:
    state = stand(stand(PLACED, "a:1", former), "a:1", latter)
    assert (state.waiting, state.ended) == (latter is Standing.WAITING, latter is Standing.ENDED)


def test_waiting_is_timed_from_the_first_that_waits_until_nobody_does() -> None:
    state = stand(PLACED, "a:0", Standing.WAITING)
    assert state.waiting_since == 5
    state = stand(replace(state, now=7.0), "b:0", Standing.WAITING)
    assert state.waiting_since == 5
    state = stand(stand(state, "a:0", Standing.ENDED), "b:0", Standing.ENDED)
    assert state.waiting_since is None


def test_a_changed_copy_leaves_the_state_as_it_was() -> None:
    known = copy.deepcopy(PLACED)
    changed = stand(PLACED, "a:0", Standing.ENDED)
    assert changed != PLACED
    assert known == PLACED


def test_a_host_that_has_ended_takes_its_workers_and_no_others() -> None:
    state = PLACED.with_host_ended("a")
    assert names(state.standing(Standing.ENDED)) == ["a:0", "a:1"]
    assert names(state.alive()) == ["b:0"]


def test_a_rank_is_the_placements_until_a_generation_gives_another() -> None:
    assert PLACED.rank_of(parse_worker("b:0")) == 2
    record = PLACED.workers[parse_worker("b:0").slot]
    moved = PLACED.with_records([replace(record, assignment=replace(record.assignment, rank=0))])
    assert moved.rank_of(parse_worker("b:0")) == 0


def test_there_is_no_generation_number_before_the_first() -> None:
    assert PLACED.number == 0
    formed = play("policy size=1", "hosts a:1", "join a:0")
    assert formed.number == 1
