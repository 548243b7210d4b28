"""Joining: a worker wishes to be in the next generation, and tells of itself.

Before the first generation, and when members have called `init()` again or begin again at a commit, they wait until all
have come. A member that cannot go on, or was sent back to its last commit, stops the others. A worker that is in no
generation yet waits to be taken in.
"""

from collections.abc import Callable
from dataclasses import replace

from rendezvous.core import draining
from rendezvous.core.effects import Effect, Refuse
from rendezvous.core.endings import refuse
from rendezvous.core.events import Joined
from rendezvous.core.growth import offer_resize
from rendezvous.core.losses import interrupt
from rendezvous.core.outcome import give_up
from rendezvous.core.publication import chain, publish_when_complete
from rendezvous.core.reports import Report, Wish
from rendezvous.core.state import Phase, State
from rendezvous.core.timeouts import start_leases
from rendezvous.core.workers import Standing, WorkerRecord

_STOPPING = frozenset({Wish.CONTINUE, Wish.RESTORE, Wish.FORM})


def join(state: State, event: Joined) -> tuple[State, tuple[Effect, ...]]:
    """Let a worker wait; when it was the last one missing, the verdict is passed and the next generation published."""
    record = state.workers[event.worker.slot]
    if record.standing is Standing.LEAVING:
        return state, (Refuse(record.worker, record.reason),)
    if state.is_member(record) and event.after < state.number:
        return state, ()  # a repeated wish that the newest generation has met: the notices answer it
    if state.refusal is not None:
        return refuse(state, [record], state.refusal)
    if not state.is_member(record):
        return _wait_to_be_taken_in(state, record, event.report)
    return _wait_for_the_others(state, record, event.report)


def _wait_to_be_taken_in(state: State, record: WorkerRecord, report: Report) -> tuple[State, tuple[Effect, ...]]:
    state = start_leases(state, {record.worker.slot.host})
    state = state.with_records([replace(record, standing=Standing.READY, has_state=report.has_state)])
    if state.phase is Phase.REFORMING:
        return publish_when_complete(state)
    return (state, ()) if state.count(Standing.INTENDED) else offer_resize(state)


def _wait_for_the_others(state: State, record: WorkerRecord, report: Report) -> tuple[State, tuple[Effect, ...]]:
    stops = state.number > 0 and report.wish in _STOPPING
    if stops and not state.policy.is_elastic:
        why = report.trouble or "it was interrupted"
        return draining.enter(state, give_up(f"rank {record.assignment.rank} cannot go on: {why}", state.cause))
    waiting = replace(
        record,
        standing=Standing.WAITING,
        report=report,
        has_state=report.has_state,
        is_past_state=not report.has_state and (record.has_state or record.is_past_state),
        is_blank=report.is_blank or (record.is_blank and not report.has_state),
    )
    state = state.with_records([waiting])
    if state.phase is Phase.RUNNING:
        state = replace(state, phase=Phase.FORMING)
    steps: list[Callable[[State], tuple[State, tuple[Effect, ...]]]] = [publish_when_complete]
    if stops:
        reason = report.trouble or f"rank {record.assignment.rank} cannot go on"
        steps.insert(0, lambda state: interrupt(state, reason))
    return chain(state, *steps)
