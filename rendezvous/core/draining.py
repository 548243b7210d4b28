"""Draining: the outcome is decided, and the workers that are left are being ended."""

from collections.abc import Container
from dataclasses import replace

from rendezvous.core.effects import Effect, Finish, Refuse, Terminate
from rendezvous.core.events import Event, Exited, Joined, Lost, Reported, Stopped, Ticked
from rendezvous.core.model import Worker
from rendezvous.core.outcome import SIGABRT, SIGINT, SIGTERM, Outcome
from rendezvous.core.state import Phase, Standing, State
from rendezvous.core.timeouts import silent_hosts


def enter(
    state: State, outcome: Outcome, *, at_once: bool = False, stuck: Container[Worker] = ()
) -> tuple[State, tuple[Effect, ...]]:
    """Decide the outcome and end whoever is left; with nobody left, finish.

    stuck: those that have not come to where the others wait: a Python that gets SIGABRT shows where it is.
    """
    grace_seconds = 0.0 if at_once else state.policy.grace_seconds
    deadline = state.now + grace_seconds + state.policy.lease_seconds
    if state.deadline is not None and state.phase is Phase.DRAINING:
        deadline = min(deadline, state.deadline)
    state = replace(state, phase=Phase.DRAINING, outcome=outcome, deadline=deadline)
    usual = SIGINT if outcome.is_interrupt else SIGTERM
    effects = tuple(
        Terminate(worker, grace_seconds, outcome.reason, signal=SIGABRT if worker in stuck else usual)
        for worker in (record.worker for record in state.alive())
    )
    return (state, effects) if effects else finish(state, outcome)


def finish(state: State, outcome: Outcome) -> tuple[State, tuple[Effect, ...]]:
    """Nothing is left to wait for."""
    return replace(state, phase=Phase.FINISHED, outcome=outcome, deadline=None), (Finish(outcome),)


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what happens while the workers end."""
    outcome, deadline = state.outcome, state.deadline
    if outcome is None or deadline is None:
        raise ValueError("a draining job has an outcome and a deadline")
    match event:
        case Exited(worker, returncode):
            record = replace(state.workers[worker.slot], standing=Standing.ENDED, returncode=returncode)
            return _finish_when_empty(state.with_records([record]), outcome)
        case Lost(host):
            return _finish_when_empty(state.with_host_ended(host), outcome)
        case Reported(_, running):
            grace_seconds = max(0.0, deadline - state.policy.lease_seconds - state.now)
            usual = SIGINT if outcome.is_interrupt else SIGTERM  # of which no worker gets a second one
            return state, tuple(Terminate(worker, grace_seconds, outcome.reason, signal=usual) for worker in running)
        case Joined(worker):
            return state, (Refuse(worker, f"the job is ending: {outcome.reason}"),)
        case Stopped(at_once=True):
            return enter(state, outcome, at_once=True)
        case Ticked():
            for host in silent_hosts(state):
                state = state.with_host_ended(host)
            return finish(state, outcome) if state.now > deadline else _finish_when_empty(state, outcome)
        case _:
            return state, ()


def _finish_when_empty(state: State, outcome: Outcome) -> tuple[State, tuple[Effect, ...]]:
    return (state, ()) if state.ended < len(state.workers) else finish(state, outcome)
