"""The transitions as a table: what each event leads to in each phase, and that an illegal one changes nothing."""

import copy
from dataclasses import replace

import pytest

from rendezvous.core import membership
from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import (
    CoreError,
    Event,
    Exited,
    HostsChanged,
    IllegalEventError,
    Joined,
    Reported,
    Terminate,
    Ticked,
)
from rendezvous.core.model import Host, Policy, Slot, Worker
from tests.rendezvous.core.commands import parse_event, parse_worker
from tests.rendezvous.core.transcript import play
from tests.rendezvous.counting import count_steps

PLACED = ("policy size=2", "tick 10", "hosts a:1 b:1")
BEFORE = {
    "begun": ("policy size=2", "tick 10"),
    "forming": (*PLACED, "join b:0"),
    "running": (*PLACED, "join b:0", "join a:0"),
    "draining": (*PLACED, "exit b:0 1"),
    "finished": (*PLACED, "exit b:0 0", "exit a:0 0"),
}
LEGAL = [
    ("begun", ["tick", "11"], Phase.FORMING),
    ("begun", ["tick", "10"], Phase.FORMING),
    ("begun", ["hosts", "a:1", "b:1"], Phase.FORMING),
    ("begun", ["stop", "130", "interrupted"], Phase.FINISHED),
    ("forming", ["tick", "11"], Phase.FORMING),
    ("forming", ["report", "a"], Phase.FORMING),
    ("forming", ["join", "b:0"], Phase.FORMING),
    ("forming", ["join", "a:0"], Phase.RUNNING),
    ("forming", ["exit", "a:0", "0"], Phase.FORMING),
    ("forming", ["exit", "a:0", "1"], Phase.DRAINING),
    ("forming", ["lost", "a", "gone"], Phase.DRAINING),
    ("forming", ["hosts", "a:1", "b:1"], Phase.FORMING),  # another server has found them again
    ("forming", ["stop", "130", "interrupted"], Phase.DRAINING),
    ("running", ["tick", "11"], Phase.RUNNING),
    ("running", ["hosts", "a:1", "b:1"], Phase.RUNNING),
    ("running", ["report", "a", "running", "a:0"], Phase.RUNNING),
    ("running", ["join", "a:0"], Phase.RUNNING),
    ("running", ["join", "a:0", "after=1"], Phase.FORMING),
    ("running", ["sequencer", "a", "generation=1", "at", "h:1"], Phase.RUNNING),
    ("running", ["exit", "a:0", "0"], Phase.RUNNING),
    ("running", ["exit", "a:0", "1"], Phase.DRAINING),
    ("running", ["lost", "b", "gone"], Phase.DRAINING),
    ("running", ["stop", "130", "interrupted"], Phase.DRAINING),
    ("draining", ["tick", "11"], Phase.DRAINING),
    ("draining", ["report", "a", "running", "a:0"], Phase.DRAINING),
    ("draining", ["join", "a:0"], Phase.DRAINING),
    ("draining", ["exit", "b:0", "0"], Phase.DRAINING),
    ("draining", ["exit", "a:0", "0"], Phase.FINISHED),
    ("draining", ["lost", "a", "gone"], Phase.FINISHED),
    ("draining", ["stop", "130", "interrupted"], Phase.DRAINING),
    ("finished", ["tick", "11"], Phase.FINISHED),
    ("finished", ["report", "a"], Phase.FINISHED),
    ("finished", ["join", "a:0"], Phase.FINISHED),
    ("finished", ["exit", "a:0", "1"], Phase.FINISHED),
    ("finished", ["lost", "a", "gone"], Phase.FINISHED),
    ("finished", ["stop", "130", "interrupted"], Phase.FINISHED),
]
NOT_YET = "slot a:0 is not in use|"  # before the hosts are known
EVERYWHERE_ILLEGAL = {
    "tick 9": "the clock already showed 10",
    "report c": "host c is not in use",
    "lost c gone": "host c is not in use",
    "join c:0": "slot c:0 is not in use",
    "join a:1": "slot a:1 is not in use",
    "join a:0#2": f"{NOT_YET}incarnation 2 of slot a:0 was never started",
    "join a:0 after=2": f"{NOT_YET}generation 2 has not been published",
    "exit a:0#2 0": f"{NOT_YET}incarnation 2 of slot a:0 was never started",
    "exit b:1 0": "slot b:1 is not in use",
    "report a running b:0": "host a is not in use|worker b:0 is not on host a",
}
ILLEGAL = [(before, event, reason) for before in BEFORE for event, reason in EVERYWHERE_ILLEGAL.items()] + [
    ("begun", "report a", "host a is not in use"),
    ("begun", "lost a gone", "host a is not in use"),
    ("begun", "join a:0", "slot a:0 is not in use"),
    ("begun", "exit a:0 0", "slot a:0 is not in use"),
    ("forming", "hosts a:1 b:2", "the placement of this job is fixed"),
    ("forming", "join a:0 after=1", "generation 1 has not been published"),
    ("running", "hosts a:1 b:2", "the placement of this job is fixed"),
    ("running", "sequencer b generation=1 at h:1", r"rank 0 \(a:0\) is on another host"),
]


@pytest.mark.parametrize(("before", "event", "phase"), LEGAL, ids=str)
def test_a_legal_event_leads_to_its_phase(before: str, event: list[str], phase: Phase) -> None:
    state, _ = membership.step(play(*BEFORE[before]), parse_event(event))
    assert state.phase is phase


@pytest.mark.parametrize(("before", "event", "reason"), ILLEGAL, ids=str)
def test_an_illegal_event_raises_and_changes_nothing(before: str, event: str, reason: str) -> None:
    state = play(*BEFORE[before])
    known = copy.deepcopy(state)
    with pytest.raises(IllegalEventError, match=f"is not possible here: ({reason})$"):
        membership.step(state, parse_event(event.split()))
    assert state == known


@pytest.mark.parametrize("before", BEFORE)
def test_the_states_of_this_table_have_the_phases_they_are_named_after(before: str) -> None:
    assert play(*BEFORE[before]).phase == (before if before != "begun" else Phase.FORMING)


def test_a_job_begins_without_hosts_or_outcome() -> None:
    state = membership.begin(Policy.static(2))
    assert (state.phase, tuple(state.workers), state.outcome, state.generation) == (Phase.FORMING, (), None, None)


def test_errors_of_the_core_have_one_base() -> None:
    with pytest.raises(CoreError):
        play("policy size=1", "report a")


class ReadOnce(tuple[Worker, ...]):
    """A list of workers that may not be searched again and again: with thousands that would take minutes."""

    __slots__ = ()

    def __contains__(self, worker: object) -> bool:
        raise AssertionError(f"searched for {worker}")


def test_a_report_is_compared_without_searching_it_for_each_worker() -> None:
    running = ReadOnce([parse_worker("a:0"), parse_worker("a:7")])
    _, (order,) = membership.step(play(*BEFORE["forming"]), Reported("a", running))
    assert order == Terminate(parse_worker("a:7"), 0, "it is no longer wanted")


def count_work(policy: Policy, events: list[Event]) -> int:
    """How many steps it takes to apply these events to a job."""
    state = membership.begin(policy)

    def apply_all() -> None:
        nonlocal state
        for event in events:
            state, _ = membership.step(state, event)

    steps = count_steps(apply_all)
    assert state.phase is Phase.FINISHED
    return steps


def list_whole_job(hosts: int) -> list[Event]:
    """A job of hosts with 8 workers each that report, join and end well."""
    workers = {f"h{number}": [Worker(Slot(f"h{number}", index), 1) for index in range(8)] for number in range(hosts)}
    everybody = [worker for host in workers.values() for worker in host]
    return [
        HostsChanged(tuple(Host(name, 8) for name in workers)),
        *(Reported(name, tuple(host)) for name, host in workers.items()),
        *(Joined(worker) for worker in reversed(everybody)),
        *(Exited(worker, 0) for worker in everybody),
    ]


def test_the_work_of_a_whole_job_hardly_grows_faster_than_its_size() -> None:
    small, large = (count_work(Policy.static(8 * hosts), list_whole_job(hosts)) for hosts in (8, 64))
    assert large < 1.5 * (64 / 8) * small


def test_a_tick_looks_at_hosts_and_not_at_workers() -> None:
    def count_tick(hosts: int, slots: int) -> int:
        names = [f"h{number}" for number in range(hosts)]
        state = membership.begin(Policy.elastic(1, hosts * slots, hosts * slots))
        workers = [Worker(Slot(name, index), 1) for name in names for index in range(slots)]
        listed = (*(Host(name, slots) for name in names), Host("spare", slots))
        events: list[Event] = [Ticked(0.0), HostsChanged(listed), *map(Joined, workers), Ticked(0.25)]
        for event in events:
            state, _ = membership.step(state, event)
        return count_steps(lambda: membership.step(state, Ticked(0.5)))

    assert count_tick(8, 64) == count_tick(8, 1)


def test_a_late_exit_costs_no_more_than_an_early_one() -> None:
    def refused(hosts: int) -> list[Event]:
        first, *others = (event for event in list_whole_job(hosts) if isinstance(event, Exited))
        joins = [Joined(exited.worker) for exited in others]
        return [list_whole_job(hosts)[0], joins[0], first, *joins, *others]

    small, large = (count_work(Policy.static(8 * hosts), refused(hosts)) for hosts in (8, 64))
    assert large < 1.5 * (64 / 8) * small


def test_a_rule_cannot_leave_the_table() -> None:
    state = play("policy size=1", "tick 0", "hosts a:1", "join a:0")
    with pytest.raises(ValueError, match="there is no transition from running to finished"):
        state.enter(Phase.FINISHED)
    record = state.workers[Slot("a", 0)]
    with pytest.raises(ValueError, match="there is no transition from member to ready"):
        state.with_records([replace(record, state=WorkerState.READY)])
