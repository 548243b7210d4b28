"""Abandonment: workers that live, and that the job goes on without: they are ended, and count as lost from now on."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rendezvous.core.effects import Terminate
from rendezvous.core.model import Host, Slot, Worker
from rendezvous.core.outcome import Outcome
from rendezvous.core.state import State
from rendezvous.core.workers import Standing, WorkerRecord


def abandon(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome], *, weight: int = 1
) -> tuple[State, tuple[Terminate, ...], Outcome | None]:
    """End these, at once; and how the job ends if it may not go on without them, None where there are none.

    explain: why one is given up, by its rank.
    weight: how many failures of its slot it counts for; 1: as many as `blame_worker_lost` says.
    """
    effects: list[Terminate] = []
    first: Outcome | None = None
    for record in records:
        outcome = explain(record.worker, record.assignment.rank)
        first = first or outcome
        leaving = replace(record, standing=Standing.LEAVING, report=None, reason=outcome.reason, leaves_by=state.clock)
        state = replace(state.with_records([leaving]), failures=state.failures + 1)
        state = blame_worker_lost(state, record) if weight == 1 else blame_slot(state, record.worker.slot, weight)
        effects.append(Terminate(record.worker, 0.0, outcome.reason, is_loss=True))
    return state, tuple(effects), first


def blame_worker_lost(state: State, former: WorkerRecord) -> State:
    """A worker has failed, by itself or by what was done to it: its slot is blamed, unless it had made progress."""
    if former.has_committed:
        return state
    if state.number and state.is_member(former):
        return replace(state, blame=state.blame.suspect_slot(former.worker.slot))
    return blame_slot(state, former.worker.slot)


def settle_suspicions(state: State, *, has_committed: bool) -> State:
    """The newest generation's survivors have reported: its members have committed steps together, or they have not."""
    suspects = state.blame.suspects
    state = replace(state, blame=replace(state.blame, suspects=()))
    if has_committed:
        members = (record for record in state.survivors() if not record.has_committed)
        return state.with_records([replace(record, has_committed=True) for record in members])
    for slot in suspects:
        state = blame_slot(state, slot)
    return state


def blame_slot(state: State, slot: Slot, weight: int = 1) -> State:
    """A slot has failed."""
    offered = Host(slot.host, state.slots[slot.host]) if slot.host in state.slots else None
    blame = state.blame.blame_slot(slot, offered, state.clock, state.policy.recovery, weight)
    return replace(state, blame=blame)
