"""What ends, or may end, a job in any phase before its end: exits, lost hosts, orders from outside, time.

The phases hand over to `handle` what they have no answer of their own for.
"""

from collections.abc import Iterable
from dataclasses import replace

from rendezvous.core import draining, stopping
from rendezvous.core.effects import Depart, Dismiss, Effect, Refuse
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Declared, Event, Exited, HostsChanged, Lost, Noticed, Reported, Stopped, Ticked
from rendezvous.core.intent import reconcile
from rendezvous.core.losses import lose_host, lose_late, lose_worker
from rendezvous.core.model import Host, Worker
from rendezvous.core.outcome import SIGKILL, blame_worker, conclude, stop
from rendezvous.core.publication import chain, move_on
from rendezvous.core.scheduling import find_newcomers, retire
from rendezvous.core.state import Phase, Standing, State, WorkerRecord
from rendezvous.core.timeouts import find_late, find_overdue, silent_hosts, unheard_hosts


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what means the same whether the job is forming, running or reforming."""
    match event:
        case Exited():
            return end_worker(state, event)
        case Lost(host, reason):
            return end_host(state, host, reason)
        case Noticed(host):
            return stopping.heed(state, host)
        case Stopped(code, reason, at_once):
            return draining.enter(state, stop(code, reason), at_once=at_once)
        case Ticked():
            return _pass_time(state)
        case Reported():
            return state, reconcile(state, event)
        case HostsChanged(hosts):
            return _change_hosts(state, event, hosts)
        case Declared(worker, is_blank):
            record = state.workers[worker.slot]
            if record.standing is Standing.WAITING and state.number:
                return state, ()  # late: what it has reported since is what counts
            return state.with_records([replace(record, has_state=True, is_blank=is_blank)]), ()
        case _:
            return state, ()


def _change_hosts(state: State, event: HostsChanged, hosts: tuple[Host, ...]) -> tuple[State, tuple[Effect, ...]]:
    if state.workers and not state.policy.is_elastic:
        raise IllegalEventError(event, "the placement of this job is fixed")
    return move_on(state.with_offer(hosts))


def _pass_time(state: State) -> tuple[State, tuple[Effect, ...]]:
    """What time alone brings about: leases run out; in an elastic job slots open again, and newcomers may be late."""
    if silent := silent_hosts(state):
        return end_host(state, silent[0], f"its agent was silent for {state.policy.lease_seconds:g} s (--lease)")
    if state.drained or state.stops_at is not None:
        phase = state.phase
        state, effects = stopping.pass_time(state)
        if effects or state.phase is not phase:
            return state, effects
    if not state.policy.is_elastic:
        return state, ()
    for host in unheard_hosts(state):
        if (reason := find_overdue(state, host)) is not None:
            return end_host(state, host, reason)
    if state.is_settled or not (state.number or state.failures):  # before the first failure no slot waits for its time
        return state, ()
    return chain(state, lambda state: lose_late(state, find_late(state)), move_on)


def end_worker(state: State, event: Exited) -> tuple[State, tuple[Effect, ...]]:
    """A worker has ended: as it should, well, which its peers may have to be told, or badly."""
    former = state.workers[event.worker.slot]
    is_left = former.standing is Standing.LEAVING
    record = replace(
        former,
        standing=Standing.ENDED,
        returncode=event.returncode,
        report=None,
        is_done=not is_left and state.ends_well(event.returncode),
    )
    ended = state.with_records([record])
    if is_left or (record.is_done and not state.is_member(former)):
        return _settle(ended)
    if record.is_done:
        return _end_well(ended, event.worker)
    outcome = blame_worker(event, state.rank_of(event.worker))
    return lose_worker(ended, former, outcome, cannot_start=event.cannot_start)


def _end_well(state: State, worker: Worker) -> tuple[State, tuple[Effect, ...]]:
    """A member has ended well: nobody takes its place, and no further generation can have all workers."""
    if state.count(Standing.ENDED) == len(state.workers):
        return _finish(state)
    departure = _tell_departure(state, worker)
    state, refusals = refuse_waiting(state, worker)
    newcomers = find_newcomers(state) if state.number else ()
    state, retired = retire(state, newcomers, f"nobody is taken in any more: {worker} has ended well")
    if state.phase is Phase.REFORMING:
        state = replace(state, deadline=None, short_since=None)  # nobody is waited for any more
    state, finish = _settle(state)
    return state, departure + refusals + retired + finish


def _settle(state: State) -> tuple[State, tuple[Effect, ...]]:
    """A worker is gone whom nobody waits for: the job may be over, or its slot be free for another."""
    is_over = state.count(Standing.ENDED) == len(state.workers)
    if is_over and any(record.is_done and state.is_member(record) for record in state.workers.values()):
        return _finish(state)
    return move_on(state)


def _finish(state: State) -> tuple[State, tuple[Effect, ...]]:
    """All have ended; one's success does not hide another's failure, where the others have not made it good."""
    first = state.cause if state.number else None
    return draining.finish(state, conclude(first, has_stopped=state.has_stopped))


def _tell_departure(state: State, worker: Worker) -> tuple[Effect, ...]:
    generation = state.generation
    rank = state.rank_of(worker)
    if generation is None or generation.members[rank] != worker:
        return ()
    return (Depart(generation.number, worker, rank),)


def end_host(state: State, host: str, reason: str) -> tuple[State, tuple[Effect, ...]]:
    """A host is gone with its workers; one whose workers had ended, or were leaving a drained one, is no loss."""
    if host not in state.hosts:
        return state, ()
    is_drained = host in state.drained
    gone = {Standing.ENDED, Standing.LEAVING} if is_drained else {Standing.ENDED}
    if any(record.standing not in gone for record in state.on(host)):
        return lose_host(state, host, reason)
    if not state.policy.is_elastic:
        return state, ()
    state, effects = _settle(state.with_host_ended(host, -SIGKILL).without_host(host))
    return state, (Dismiss(host, f"host {host} was lost: {reason}", is_drained), *effects)


def refuse_waiting(state: State, gone: Worker) -> tuple[State, tuple[Effect, ...]]:
    """Once a worker has ended, no generation of all workers can be formed any more: say so to those that wait."""
    refusal = state.refusal or _explain_refusal(state, gone)
    state = replace(state, refusal=refusal)
    return refuse(state, state.standing(Standing.WAITING) if state.waiting else (), refusal)


def _explain_refusal(state: State, gone: Worker) -> str:
    """In an elastic job those that train come back for another generation without having called `init()` again."""
    name = f"rank {state.rank_of(gone)} ({gone})"
    if state.policy.is_elastic and state.number:
        left = f"{name} has left (exit code {state.workers[gone.slot].returncode}), and nobody takes its place"
        return left if state.cause is None else f"{state.cause.reason}; {left}"
    return f"{name} has ended and will not take part; every worker must call hvd.init() as often as the others"


def refuse(state: State, records: Iterable[WorkerRecord], reason: str) -> tuple[State, tuple[Effect, ...]]:
    """Tell workers that they will be in no further generation."""
    refused = tuple(replace(record, standing=Standing.REFUSED, report=None) for record in records)
    return state.with_records(refused), tuple(Refuse(record.worker, reason) for record in refused)
