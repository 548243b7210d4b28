"""Losses: a worker or a host is gone, and the job goes on without it, or ends.

A member's loss stops its generation: whoever is left is interrupted, reports, and is in the next one. Before the first
generation, and for one that is in none yet, only its slot is staffed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rendezvous.core import draining
from rendezvous.core.abandonment import abandon, blame_slot, blame_worker_lost
from rendezvous.core.effects import Dismiss, Effect, Interrupt
from rendezvous.core.model import Worker
from rendezvous.core.outcome import SIGKILL, Outcome, blame_host, conclude, fail_to_join, fail_to_report, lose_state
from rendezvous.core.publication import chain, move_on, publish_when_complete
from rendezvous.core.scheduling import staff
from rendezvous.core.state import Phase, State
from rendezvous.core.verdict import STATE_LOST
from rendezvous.core.workers import Standing, WorkerRecord


def lose_worker(
    state: State, former: WorkerRecord, outcome: Outcome, *, cannot_start: bool
) -> tuple[State, tuple[Effect, ...]]:
    """A worker has failed, and has ended: state is that without it, former what it was.

    cannot_start: see `Exited`: its slot is closed at once.
    """
    state = replace(state, failures=state.failures + 1)
    if not _may_go_on(state):
        return _end(state, outcome)
    if former.worker.slot.host not in state.drained:
        most = state.policy.recovery.failures_per_slot
        state = blame_slot(state, former.worker.slot, most) if cannot_start else blame_worker_lost(state, former)
    return _go_on(state, [former], outcome)


def lose_host(state: State, host: str, reason: str) -> tuple[State, tuple[Effect, ...]]:
    """A host is gone with its workers."""
    former = [record for record in state.on(host) if record.standing is not Standing.ENDED]
    outcome = blame_host(host, reason)
    if not _may_go_on(replace(state, failures=state.failures + 1)):
        state, effects = _end(state.with_host_ended(host), outcome)
        if state.outcome is not None:
            return state, effects
        return state.without_host(host), (Dismiss(host, outcome.reason), *effects)
    is_expected = host in state.drained
    blame = state.blame if is_expected else state.blame.close_host(host, state.clock, state.policy.recovery)
    state = replace(state.with_host_ended(host, -SIGKILL).without_host(host), failures=state.failures + 1, blame=blame)
    state, effects = _go_on(state, former, outcome)
    return state, (Dismiss(host, outcome.reason), *effects)


def lose_silent(
    state: State, records: Sequence[WorkerRecord], limit_seconds: float
) -> tuple[State, tuple[Effect, ...]]:
    """These members have not reported in time: they are ended, and count as lost from now on."""
    return _lose_all(state, records, lambda worker, rank: fail_to_report(worker, rank, limit_seconds))


def lose_late(state: State, records: Sequence[WorkerRecord]) -> tuple[State, tuple[Effect, ...]]:
    """These newcomers have not joined in time: the same."""
    limit_seconds = state.policy.start_timeout_seconds
    return _lose_all(state, records, lambda worker, rank: fail_to_join(worker, rank, limit_seconds))


def _lose_all(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome]
) -> tuple[State, tuple[Effect, ...]]:
    state, effects, outcome = abandon(state, records, explain)
    if outcome is None:
        return state, ()
    if not _may_go_on(state):
        return _end(state, outcome)
    state, more = _go_on(state, records, outcome)
    return state, (*effects, *more)


def interrupt(state: State, reason: str) -> tuple[State, tuple[Effect, ...]]:
    """Stop the newest generation, if it has not been stopped yet: its members have to report by a deadline."""
    if not state.number or state.phase is Phase.REFORMING:
        return state, ()
    state = replace(state, phase=Phase.REFORMING, deadline=state.now + state.policy.report_seconds)
    return state, (Interrupt(state.number, reason),)


def _may_go_on(state: State) -> bool:
    """Once somebody has ended well, nobody else may fail: one worker's success does not hide another's failure.

    Before the first generation no more may fail than it takes to close every slot.
    """
    most = state.policy.recovery.failures_per_slot * max(state.policy.min_size, state.slots_offered)
    starts = state.number > 0 or state.failures <= most
    return starts and state.refusal is None and state.policy.allows(state.failures)


def _end(state: State, outcome: Outcome) -> tuple[State, tuple[Effect, ...]]:
    """The job does not go on, and ends with its first failure: state is that without whoever was lost.

    Once a member has ended well, the others may be past their training, and write the last checkpoint: nobody ends
    them. What they still wait for cannot come; they are told so, and that no generation follows.
    """
    if state.refusal is None or not state.number or not state.policy.is_elastic:
        return draining.enter(state, outcome)
    if not state.alive():
        return draining.enter(state, conclude(state.cause or outcome, has_stopped=state.has_stopped))
    if state.cause is not None:
        return state, ()  # they know already
    state, effects = interrupt(state, outcome.reason)
    refusal = f"{outcome.reason}; {state.refusal}"
    return replace(state, cause=outcome, refusal=refusal, deadline=None), effects


def _go_on(state: State, former: Sequence[WorkerRecord], outcome: Outcome) -> tuple[State, tuple[Effect, ...]]:
    """Go on without these: state is that without them."""
    if not state.number:
        state = replace(state, cause=state.cause or outcome)
        return chain(state, _staff_or_end, publish_when_complete)
    if not any(record.generation == state.number for record in former):
        return move_on(state)
    state = replace(state, cause=state.cause or outcome)
    return chain(
        state,
        _end_without_survivors,
        lambda state: interrupt(state, outcome.reason),
        move_on,
    )


def _staff_or_end(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Before the first generation: when too few slots are left because the others have failed, that is how it ends.

    When too few are offered at all, hosts may still come.
    """
    needed = state.policy.min_size
    staffed, effects = staff(state)
    is_hopeless = len(staffed.alive()) < needed <= state.slots_offered
    return draining.enter(state, state.cause) if state.cause is not None and is_hopeless else (staffed, effects)


def _end_without_survivors(state: State) -> tuple[State, tuple[Effect, ...]]:
    """With the last member the state of the training is gone.

    Where all members of a generation fail, the first failure decides how the job ends. Whoever is there in the place of
    somebody lost before is left without the state.
    """
    cause, generation = state.cause, state.generation
    if cause is None or generation is None or state.survivors():
        return state, ()
    slots = {worker.slot for worker in generation.members}
    is_left = any(record.worker.slot not in slots for record in state.alive())
    return draining.enter(state, lose_state(f"{cause.reason}; {STATE_LOST}", cause) if is_left else cause)
