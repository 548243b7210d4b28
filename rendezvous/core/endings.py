"""What ends, or may end, a job that is forming or running: exits, lost hosts, orders from outside.

Both phases hand over to `handle` what they have no answer of their own for.
"""

from collections.abc import Iterable
from dataclasses import replace

from rendezvous.core import draining
from rendezvous.core.effects import Depart, Effect, Launch, Refuse
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Event, Exited, HostsChanged, Lost, Reported, Stopped, Ticked
from rendezvous.core.intent import reconcile
from rendezvous.core.leases import silent_hosts
from rendezvous.core.model import Worker
from rendezvous.core.outcome import blame_host, blame_worker, stop, succeed
from rendezvous.core.state import Standing, State, WorkerRecord


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what means the same whether the job is forming or running."""
    match event:
        case Exited():
            return end_worker(state, event)
        case Lost(host, reason):
            return end_host(state, host, reason)
        case Stopped(code, reason, at_once):
            return draining.enter(state, stop(code, reason), at_once=at_once)
        case Ticked() if silent := silent_hosts(state):
            return end_host(state, silent[0], f"its agent was silent for {state.policy.lease_seconds:g} s (--lease)")
        case Reported():
            return state, reconcile(state, event)
        case HostsChanged():
            raise IllegalEventError(event, "the placement of this job is fixed")
        case _:
            return state, ()


def end_worker(state: State, event: Exited) -> tuple[State, tuple[Effect, ...]]:
    """A worker has ended: well, which its peers may have to be told; or badly, which a static job does not survive."""
    former = state.workers[event.worker.slot]
    record = replace(former, standing=Standing.ENDED, returncode=event.returncode)
    ended = state.with_records([record])
    if event.returncode == 0:
        if ended.ended == len(ended.placement):
            return draining.finish(ended, succeed())
        refused, refusals = refuse_waiting(ended, event.worker)
        return refused, _tell_departure(state, event.worker) + refusals
    if _may_start_again(state):
        return _start_again(replace(ended, failures=state.failures + 1), record)
    outcome = blame_worker(event.worker, state.rank_of(event.worker), event.returncode, event.error)
    return draining.enter(replace(ended, failures=state.failures + 1), outcome)


def _tell_departure(state: State, worker: Worker) -> tuple[Effect, ...]:
    generation = state.generation
    rank = state.rank_of(worker)
    if generation is None or generation.members[rank] != worker:
        return ()
    return (Depart(generation.number, worker, rank),)


def end_host(state: State, host: str, reason: str) -> tuple[State, tuple[Effect, ...]]:
    """A host is gone with its workers, which a static job does not survive; one whose workers had ended is no loss."""
    if all(record.standing is Standing.ENDED for record in state.on(host)):
        return state, ()
    return draining.enter(state.with_host_ended(host), blame_host(host, reason))


def refuse_waiting(state: State, gone: Worker) -> tuple[State, tuple[Effect, ...]]:
    """Once a worker has ended, no generation of all workers can be formed any more: say so to those that wait."""
    refusal = state.refusal or (
        f"rank {state.rank_of(gone)} ({gone}) has ended and will not take part; "
        "every worker must call hvd.init() as often as the others"
    )
    state = replace(state, refusal=refusal)
    return refuse(state, state.standing(Standing.WAITING) if state.waiting else (), refusal)


def refuse(state: State, records: Iterable[WorkerRecord], reason: str) -> tuple[State, tuple[Effect, ...]]:
    """Tell workers that they will be in no further generation."""
    refused = tuple(replace(record, standing=Standing.REFUSED) for record in records)
    return state.with_records(refused), tuple(Refuse(record.worker, reason) for record in refused)


def _may_start_again(state: State) -> bool:
    """Before the first generation nothing can be lost by starting a worker again, if the policy allows it."""
    return state.generation is None and state.failures < state.policy.failures_allowed


def _start_again(state: State, record: WorkerRecord) -> tuple[State, tuple[Effect, ...]]:
    worker = Worker(record.worker.slot, record.worker.incarnation + 1)
    state = state.with_records([WorkerRecord(worker, record.assignment)])
    reason = f"{record.worker} failed before the first generation ({state.failures} of {state.policy.failures_allowed})"
    return state, (Launch(worker, record.assignment, reason),)
