"""Forming: workers are being started, or some wait in `init()` until all the others have come."""

from dataclasses import replace
from itertools import groupby

from rendezvous.core import draining, endings
from rendezvous.core.effects import Effect, Launch, Publish
from rendezvous.core.events import Event, HostsChanged, Joined, Ticked
from rendezvous.core.leases import explain_overdue_start, silent_hosts, start_leases
from rendezvous.core.model import Generation, Host, Worker
from rendezvous.core.outcome import time_out
from rendezvous.core.placement import place
from rendezvous.core.ranking import rank
from rendezvous.core.state import Phase, Standing, State, WorkerRecord
from rendezvous.core.table import Table


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what happens until every worker has joined."""
    match event:
        case HostsChanged(hosts) if not state.placement:
            return _place(state, hosts)
        case Joined(worker, after):
            return join(state, worker, after)
        case Ticked() if not silent_hosts(state) and (reason := explain_overdue_start(state)):
            return draining.enter(state, time_out(reason))
        case _:
            return endings.handle(state, event)


def join(state: State, worker: Worker, after: int) -> tuple[State, tuple[Effect, ...]]:
    """Let a worker wait; when it was the last one missing, publish the next generation."""
    record = state.workers[worker.slot]
    if record.standing is Standing.MEMBER and after < state.number:
        return state, ()  # a repeated wish that the newest generation has met: the notices answer it
    if state.refusal is not None:
        return endings.refuse(state, [record], state.refusal)
    state = replace(state, phase=Phase.FORMING).with_records([replace(record, standing=Standing.WAITING)])
    return _publish(state) if state.waiting == len(state.placement) else (state, ())


def _place(state: State, hosts: tuple[Host, ...]) -> tuple[State, tuple[Effect, ...]]:
    placement = place(hosts, state.policy.min_size, state.policy.max_size)
    assignments = rank(placement)
    records = tuple(
        WorkerRecord(Worker(slot, 1), assignment) for slot, assignment in zip(placement, assignments, strict=True)
    )
    used = {host: tuple(slots) for host, slots in groupby(placement, lambda slot: slot.host)}
    state = replace(
        state,
        placement=placement,
        hosts=used,
        workers=Table.of(zip(placement, records, strict=True)),
        last_heard=Table.of((host, None) for host in used),
    )
    return state, tuple(Launch(record.worker, record.assignment, "placed") for record in records)


def _publish(state: State) -> tuple[State, tuple[Effect, ...]]:
    """All have joined: the members, in the order of the placement, are the next generation."""
    assignments = rank(state.placement)
    records = tuple(
        replace(record, standing=Standing.MEMBER, assignment=assignment)
        for record, assignment in zip(state.workers.values(), assignments, strict=True)
    )
    generation = Generation(state.number + 1, tuple(record.worker for record in records))
    state = replace(start_leases(state).with_records(records), phase=Phase.RUNNING, generation=generation)
    return state, (Publish(generation, assignments, f"all {len(records)} workers have joined"),)
