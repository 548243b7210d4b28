"""What a worker's end or a host's loss does to those that are left."""

import pytest

from rendezvous.core import endings
from rendezvous.core.effects import Depart, Effect, Launch, Refuse
from rendezvous.core.events import Exited
from rendezvous.core.outcome import Cause
from rendezvous.core.state import Phase, Standing
from tests.rendezvous.core.commands import parse_worker
from tests.rendezvous.core.transcript import play

PLACED = ("policy size=3", "tick 0", "hosts a:2 b:1")


def test_those_that_wait_are_refused_when_a_worker_ends_well_and_nobody_else_is() -> None:
    state, effects = endings.end_worker(play(*PLACED, "join b:0"), Exited(parse_worker("a:0"), 0))
    (refusal,) = effects
    assert isinstance(refusal, Refuse)
    assert str(refusal.worker) == "b:0"
    assert refusal.reason.startswith("rank 0 (a:0) has ended and will not take part")
    assert state.workers[parse_worker("b:0").slot].standing is Standing.REFUSED


def test_those_who_train_in_an_elastic_job_hear_who_has_left() -> None:
    members = ("policy min=1 max=2 failures=any", "hosts a:2", "join a:0", "join a:1")
    state = play(*members, "join a:0 after=1 continue", "exit a:1 0")
    assert (state.refusal or "").startswith("rank 1 (a:1) has left (exit code 0), and nobody takes its place")


def test_every_refusal_gives_the_same_reason_whoever_ends_later() -> None:
    state = play(*PLACED, "join b:0", "exit a:0 0", "exit a:1 0")
    (refusal,) = endings.refuse(state, [state.workers[parse_worker("b:0").slot]], state.refusal or "")[1]
    assert isinstance(refusal, Refuse)
    assert refusal.reason == play(*PLACED, "exit a:0 0").refusal


def test_a_job_whose_workers_all_end_well_succeeds() -> None:
    state = play(*PLACED, "exit a:0 0", "exit b:0 0", "exit a:1 0")
    assert state.outcome is not None
    assert (state.phase, state.outcome.cause) == (Phase.FINISHED, Cause.SUCCEEDED)


@pytest.mark.parametrize(
    ("before", "launched"),
    [
        (["policy size=1 failures=0"], []),
        (["policy size=1 failures=1"], ["a:0#2"]),
        (["policy size=1 failures=1", "exit a:0 1"], []),
        (["policy size=1 failures=2", "exit a:0 1"], ["a:0#3"]),
        (["policy size=1 failures=2", "join a:0"], []),
    ],
)
def test_a_failed_worker_is_started_again_as_often_as_allowed_before_the_first_generation(
    before: list[str], launched: list[str]
) -> None:
    policy, *events = before
    state = play(policy, "tick 0", "hosts a:1", *events)
    effects: tuple[Effect, ...] = endings.end_worker(state, Exited(next(iter(state.workers.values())).worker, 1))[1]
    assert [str(effect.worker) for effect in effects if isinstance(effect, Launch)] == launched


def test_a_lost_host_is_blamed_only_if_it_had_workers() -> None:
    state = play(*PLACED, "exit b:0 0")
    assert endings.end_host(state, "b", "gone") == (state, ())
    drained, _ = endings.end_host(state, "a", "gone")
    assert drained.outcome is not None
    assert drained.outcome.reason == "host a was lost: gone"


def test_the_members_of_a_generation_hear_who_has_ended_well() -> None:
    state = play(*PLACED, "join a:0", "join a:1", "join b:0")
    _, effects = endings.end_worker(state, Exited(parse_worker("b:0"), 0))
    assert effects == (Depart(1, parse_worker("b:0"), 2),)


def test_before_the_first_generation_nobody_departs() -> None:
    assert endings.end_worker(play(*PLACED), Exited(parse_worker("b:0"), 0))[1] == ()
