"""Abandonment: workers that live, and that the job goes on without: they are ended, and count as lost from now on."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rendezvous.core.effects import Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import Outcome
from rendezvous.core.records import Standing, WorkerRecord
from rendezvous.core.state import State


def abandon(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome], *, weight: int = 1
) -> tuple[State, tuple[Terminate, ...], Outcome | None]:
    """End these, at once; and how the job ends if it may not go on without them, None where there are none.

    explain: why one is given up, by its rank.
    weight: how many failures of its slot it counts for.
    """
    effects: list[Terminate] = []
    first: Outcome | None = None
    for record in records:
        outcome = explain(record.worker, record.assignment.rank)
        first = first or outcome
        leaving = replace(record, standing=Standing.LEAVING, report=None, reason=outcome.reason, leaves_by=state.clock)
        state = replace(state.with_records([leaving]), failures=state.failures + 1)
        state = blame_slot(state, record.worker.slot, weight)
        effects.append(Terminate(record.worker, 0.0, outcome.reason, is_loss=True))
    return state, tuple(effects), first


def blame_slot(state: State, slot: Slot, weight: int = 1) -> State:
    """A slot has failed."""
    offered = next((host for host in state.offered if host.name == slot.host), None)
    blame = state.blame.blame_slot(slot, offered, state.clock, state.policy.recovery, weight)
    return replace(state, blame=blame)
