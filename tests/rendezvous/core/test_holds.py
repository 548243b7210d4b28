"""What a server that was started again performs, from each state that needs something, and its first state."""

import pytest

from rendezvous.core import membership
from rendezvous.core.holds import holds, list_audience, restore
from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import Exited, Reported, Ticked
from rendezvous.core.model import Slot, Worker
from tests.rendezvous.core.transcript import play, show_effects

ELASTIC = "policy min=1 max=4 failures=any cooldown=0-0"
TRAINING = (ELASTIC, "tick 100", "hosts a:1 b:1", "report all", "join all", "declare all")
PUBLISHED = "publish 1: a:0 b:0  (it is the newest generation)"
A0, B0 = (Worker(Slot(host, 0), 1) for host in "ab")


@pytest.mark.parametrize(
    ("commands", "held"),
    [
        ((ELASTIC,), []),
        ((ELASTIC, "hosts a:1 b:1", "report all"), []),
        (
            (ELASTIC, "hosts a:1 b:1", "report a"),
            ["launch b:0 rank=1/2 local=0/1 cross=1/2  (its host has not reported)"],
        ),
        (TRAINING, [PUBLISHED]),
        ((*TRAINING, "sequencer a generation=1 at 10.0.0.1:7"), [PUBLISHED, "announce 1 at 10.0.0.1:7"]),
        ((*TRAINING, "exit b:0 0"), [PUBLISHED, "depart b:0 rank=1 generation=1"]),
        ((*TRAINING, "exit b:0 1"), [PUBLISHED, "interrupt 1  (rank 1 (b:0) failed with exit code 1)"]),
        ((*TRAINING, "hosts a:1"), [PUBLISHED, "offer 1 to generation 1: removes"]),
        ((*TRAINING, "hosts a:1", "hosts a:1 b:1"), [PUBLISHED, "offer 2 to generation 1: nothing any more"]),
        (
            (*TRAINING, "notice job"),
            [PUBLISHED, "notify all  (the stop notice stands: SIGTERM in 5 s to the workers that run then)"],
        ),
        ((*TRAINING, "stop 130 interrupted"), []),
    ],
    ids=[
        "no host",
        "workers start",
        "an agent may not have been started",
        "a generation trains",
        "its sequencer listens",
        "a member has ended well",
        "a member is lost",
        "a resize is offered",
        "the offer is withdrawn",
        "a stop notice has come",
        "the workers are stopped",
    ],
)
def test_the_effects_that_matter_follow_from_the_state(commands: tuple[str, ...], held: list[str]) -> None:
    assert list(show_effects(holds(play(*commands)))) == held


def test_a_worker_that_no_generation_includes_is_refused_again() -> None:
    state = play(*TRAINING, "exit b:0 0", "join a:0 after=1 continue state error=broken")
    assert state.workers[A0.slot].state is WorkerState.REFUSED
    (refusal,) = (line for line in show_effects(holds(state)) if line.startswith("refuse"))
    assert refusal.startswith("refuse a:0  (rank 1 (b:0) has left")

    state = play(*TRAINING, "hosts a:1", "join all after=1 resize state")
    assert list(show_effects(holds(state)))[-1] == "refuse b:0 leaves  (host b is no longer listed)"


def test_the_end_of_a_job_holds() -> None:
    state = play("policy size=1", "hosts a:1", "exit a:0 3")
    assert state.phase is Phase.FINISHED
    _, effects = membership.step(play("policy size=1", "hosts a:1"), Exited(A0, 3))
    assert [*show_effects(holds(state))] == [*show_effects(effects[-1:])]


def test_hosts_without_a_living_member_are_no_audience() -> None:
    assert list_audience(play(ELASTIC)) == ()
    assert list_audience(play(*TRAINING)) == ("a", "b")
    assert list_audience(play(*TRAINING, "lost b gone", "report b running b:0#2", "join b:0#2")) == ("a",)


@pytest.mark.parametrize("now", [0.0, 100.0, 1e6])
def test_a_lease_begins_again_with_the_clock_of_a_restored_state(now: float) -> None:
    state, _ = membership.step(restore(play(*TRAINING)), Ticked(now))
    assert (set(state.last_heard.values()), state.clock) == ({now}, 0.0)
    state, _ = membership.step(state, Ticked(now + 1))
    assert state.phase is Phase.RUNNING


def test_an_agent_that_has_not_reported_counts_as_dismissed_and_its_workers_as_replaced() -> None:
    state = restore(play(ELASTIC, "hosts a:1 b:1", "report a"))
    assert state.tenures == {"b": 1}
    assert [record.worker for record in state.workers.values()] == [A0, Worker(B0.slot, 2)]
    again = restore(play(ELASTIC, "hosts a:1 b:1", "report all"))
    assert (again.tenures, [record.worker for record in again.workers.values()]) == ({}, [A0, B0])


def test_an_agent_that_has_not_reported_and_has_started_a_worker_is_kept() -> None:
    state = restore(play(ELASTIC, "hosts a:1 b:1", "report a"), ["b"])
    assert (state.tenures, [record.worker for record in state.workers.values()]) == ({}, [A0, B0])


def test_an_agent_that_has_not_reported_and_whose_worker_has_joined_is_kept() -> None:
    state = restore(play(ELASTIC, "hosts a:2", "join a:0"))
    assert (state.tenures, state.last_heard["a"]) == ({}, state.now)


def test_a_worker_whose_start_was_never_ordered_ends_with_its_grace() -> None:
    state = play(*TRAINING[:4], "report a", "report b", "hosts a:1")
    assert state.workers[B0.slot].state is WorkerState.LEAVING
    state, _ = membership.step(state, Reported("b"))
    assert state.workers[B0.slot].state is WorkerState.LEAVING
    grace_seconds = state.policy.grace_seconds + state.policy.lease_seconds
    for seconds in range(1, int(grace_seconds) + 2):
        state, _ = membership.step(state, Ticked(100.0 + seconds))
        for host in list(state.hosts):
            running = tuple(each.worker for each in state.on(host) if host == "a")
            state, _ = membership.step(state, Reported(host, running))
    state, _ = membership.step(state, Ticked(state.now + 0.25))
    assert "b" not in state.hosts
