"""Which slots get a worker, which workers are stopped, which agents may go, and who is in the next generation.

Before the first generation each slot that is offered gets a worker, up to the most that the job may have, once enough
slots are offered to start with. Slots are used host by host, in the order of the list. Later a worker is started only
to be taken in at a commit: so only when all members can begin again, or none of what they do could make use of it.
Usually that is in the slot of a lost worker, but any open slot will do.

In a generation, hosts come in the order of their first survivor, then new hosts in the order in which they are
offered; on each host survivors in their order, then newcomers by slot. So a survivor keeps its place among survivors,
and rank 0, whose state all others copy, is a survivor. A survivor that has not got the others' state yet does not
count as one here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rendezvous.core.lifecycle import WorkerRecord, WorkerState
from rendezvous.core.messages import Dismiss, Effect, Launch, Refuse, Reported, Terminate, TooFewSlotsError
from rendezvous.core.model import Assignment, Host, Slot, Worker, rank
from rendezvous.core.outcome import SIGABRT
from rendezvous.core.reports import Decision
from rendezvous.core.state import Phase, State


def place(hosts: Sequence[Host], min_size: int, max_size: int) -> tuple[Slot, ...]:
    """Choose up to `max_size` slots, all slots of a host before the next host's.

    Raises:
        TooFewSlotsError: the hosts offer fewer than `min_size` slots.
    """
    slots = tuple(islice(list_slots(hosts), max_size))
    if len(slots) < min_size:
        raise TooFewSlotsError(hosts, min_size)
    return slots


def list_slots(hosts: Iterable[Host]) -> Iterator[Slot]:
    """All slots of these hosts, in the order in which they are used."""
    return (Slot(host.name, index) for host in hosts for index in range(host.slots))


@dataclass(frozen=True, slots=True)
class Composition:
    """The next generation.

    members: in rank order; added: those of them that are new; removed: members of the former one that are left out.
    """

    members: tuple[WorkerRecord, ...]
    added: tuple[WorkerRecord, ...] = ()
    removed: tuple[WorkerRecord, ...] = ()


def compose(state: State, decision: Decision, survivors: Sequence[WorkerRecord]) -> Composition:
    """Choose the members of the next generation.

    Survivors on slots that are no longer offered are left out where all begin again, unless that took the job below its
    least size, or nobody stayed who holds the state: then some stay for one generation more, until others are ready.
    """
    hosts = [host.name for host in state.offered]
    if decision is Decision.RETRY:
        return Composition(arrange(survivors, (), hosts))
    staying = {record.worker: record for record in survivors if state.offers(record.worker.slot)}
    ready = [record for record in state.list_workers(WorkerState.READY) if state.offers(record.worker.slot)]
    leaving = [record for record in survivors if record.worker not in staying]
    if not any(not record.needs_state for record in staying.values()):
        leaving.sort(key=lambda record: record.needs_state)
        staying |= {record.worker: record for record in leaving[:1]}
    for record in leaving:
        if len(staying) + len(ready) >= state.least_size:
            break
        staying[record.worker] = record
    kept = [record for record in survivors if record.worker in staying]
    by_offer = arrange((), ready, hosts)
    added = by_offer[: max(0, state.policy.max_size - len(kept))]
    removed = tuple(record for record in survivors if record.worker not in staying)
    return Composition(arrange(kept, added, hosts), added, removed)


def arrange(
    survivors: Sequence[WorkerRecord], newcomers: Sequence[WorkerRecord], hosts: Iterable[str]
) -> tuple[WorkerRecord, ...]:
    """The members in rank order."""
    ranked = (*(each for each in survivors if not each.needs_state), *(each for each in survivors if each.needs_state))
    by_slot = sorted(newcomers, key=lambda record: record.worker.slot.index)
    members: dict[str, list[WorkerRecord]] = {record.worker.slot.host: [] for record in ranked}
    new = {record.worker.slot.host for record in by_slot}
    members |= {host: [] for host in hosts if host in new and host not in members}
    for record in (*ranked, *by_slot):
        members.setdefault(record.worker.slot.host, []).append(record)
    return tuple(record for each in members.values() for record in each)


def foresee(state: State, newcomers: Iterable[WorkerRecord]) -> dict[Slot, Assignment]:
    """Everybody's numbers, if all newcomers were taken in now: the best guess for their environment."""
    hosts = [host.name for host in state.offered]
    members = [record.worker.slot for record in arrange(state.survivors(), tuple(newcomers), hosts)]
    return dict(zip(members, rank(members), strict=True))


_UNKNOWN = Assignment(0, 1, 0, 1, 0, 1)
_JOINED = frozenset({WorkerState.WAITING, WorkerState.READY, WorkerState.MEMBER})


def staff(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Retire who is wanted no more, dismiss agents without workers, and launch where there is room."""
    if state.refusal is not None or state.stops_at is not None:
        return state, ()
    if not state.policy.is_elastic and state.workers:
        return state, ()  # the placement of a static job is fixed
    state, retired = _retire_unwanted(state)
    state, dismissed = _dismiss_idle(state)
    state, launched = _launch(state)
    return state, retired + dismissed + launched


def retire(state: State, records: Iterable[WorkerRecord], reason: str) -> tuple[State, tuple[Effect, ...]]:
    """End these workers, which are intended no more; their slots are free when they have ended."""
    leaves_by = state.clock + state.policy.grace_seconds
    listed = tuple(records)
    effects: list[Effect] = []
    for record in listed:
        if record.state in _JOINED:
            effects.append(Refuse(record.worker, reason))
        effects.append(Terminate(record.worker, state.policy.grace_seconds, reason))
    leaving = (
        replace(record, state=WorkerState.LEAVING, report=None, reason=reason, leaves_by=leaves_by) for record in listed
    )
    return state.with_records(leaving), tuple(effects)


def refuse(state: State, records: Iterable[WorkerRecord], reason: str) -> tuple[State, tuple[Effect, ...]]:
    """These will be in no further generation, and do not wait any more."""
    refused = tuple(replace(each, state=WorkerState.REFUSED, report=None) for each in records)
    return state.with_records(refused), tuple(Refuse(each.worker, reason) for each in refused)


def stop_workers(state: State, grace_seconds: float) -> tuple[State, tuple[Effect, ...]]:
    """The outcome is decided: end the workers that are left."""
    if state.outcome is None:
        raise ValueError("workers are stopped when the outcome is decided")
    deadline = state.now + grace_seconds + state.policy.lease_seconds
    if state.deadline is not None and state.phase is Phase.DRAINING:
        deadline = min(deadline, state.deadline)
    reason, usual = state.outcome.reason, state.outcome.stop_signal
    effects = tuple(
        Terminate(worker, grace_seconds, reason, signal=SIGABRT if worker in state.stuck else usual)
        for worker in (record.worker for record in state.alive())
    )
    return replace(state.enter(Phase.DRAINING), deadline=deadline), effects


def reconcile(state: State, event: Reported) -> tuple[Effect, ...]:
    """Compare what should run on a host with what does: a lost order is repeated."""
    running = frozenset(event.running)
    intended = {record.worker: record for record in state.on(event.host) if record.state is not WorkerState.ENDED}
    missing = tuple(
        Launch(worker, record.assignment, "the agent does not have it", is_late=state.number > 0)
        for worker, record in intended.items()
        if worker not in running and record.state is WorkerState.INTENDED
    )
    surplus = tuple(
        Terminate(worker, 0.0, "it is not intended (any more)") for worker in event.running if worker not in intended
    )
    leaving = tuple(
        Terminate(worker, max(0.0, record.leaves_by - state.clock), record.reason)
        for worker, record in intended.items()
        if worker in running and record.state is WorkerState.LEAVING
    )
    return missing + surplus + leaving


def find_newcomers(state: State) -> tuple[WorkerRecord, ...]:
    """Those who have been started, and are in no generation yet; before the first one, all."""
    waiting = {WorkerState.INTENDED, WorkerState.READY} | (set() if state.number else {WorkerState.WAITING})
    return state.list_workers(*waiting)


def _retire_unwanted(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Newcomers on slots that are no longer offered, and those for which there is no room any more."""
    newcomers = find_newcomers(state)
    if not newcomers:
        return state, ()
    if state.number and not state.may_form_anew:
        return retire(state, newcomers, "the job may not be formed anew any more (--reset-limit)")
    effects: tuple[Effect, ...] = ()
    for record in newcomers:
        if not state.offers(record.worker.slot):
            state, more = retire(state, [record], explain_removal(state, record.worker.slot))
            effects += more
    wanted = [record for record in newcomers if state.offers(record.worker.slot)]
    room = max(0, state.policy.max_size - _count_staying(state))
    if surplus := wanted[room:]:
        state, more = retire(state, surplus, f"the job has {state.policy.max_size} workers without it (--max-np)")
        effects += more
    return state, effects


def explain_removal(state: State, slot: Slot) -> str:
    """Why a slot cannot be used any more, in one sentence."""
    is_listed = slot.host in state.slots
    return f"host {slot.host} offers fewer slots now" if is_listed else _explain_absence(state, slot.host)


def _explain_absence(state: State, host: str) -> str:
    return f"host {host} got a stop notice" if host in state.drained else f"host {host} is no longer listed"


def _dismiss_idle(state: State) -> tuple[State, tuple[Effect, ...]]:
    effects: list[Effect] = []
    for host in tuple(state.hosts):
        if host not in state.slots and all(record.state is WorkerState.ENDED for record in state.on(host)):
            state = state.without_host(host)
            effects.append(Dismiss(host, _explain_absence(state, host), is_drained=host in state.drained))
    return state, tuple(effects)


def _launch(state: State) -> tuple[State, tuple[Effect, ...]]:
    is_first = not state.workers
    if state.number and not _can_take_in(state, state.survivors()):
        return state, ()
    newcomers = find_newcomers(state)
    room = state.policy.max_size - _count_staying(state) - len(newcomers)
    slots = tuple(islice(_list_vacant(state), max(0, room)))
    if not slots or (is_first and len(slots) < state.policy.slots_to_start):
        return state, ()
    former = {slot: state.workers.get(slot) for slot in slots}
    new = [
        WorkerRecord(Worker(slot, 1 if known is None else known.worker.incarnation + 1), _UNKNOWN, since=state.clock)
        for slot, known in former.items()
    ]
    numbers = foresee(state, (*newcomers, *new))
    records = [replace(record, assignment=numbers[record.worker.slot]) for record in new]
    effects = tuple(
        Launch(
            record.worker,
            record.assignment,
            _explain_launch(former[record.worker.slot], is_first=is_first),
            is_late=state.number > 0,
        )
        for record in records
    )
    return replace(state.with_slots(records), short_since=None) if is_first else state.with_slots(records), effects


def _can_take_in(state: State, survivors: tuple[WorkerRecord, ...]) -> bool:
    """A newcomer would be of use: all can begin again, somebody has said so, and one fits in beside it."""
    can_begin_again = all(record.may_begin_again for record in survivors) and any(each.has_state for each in survivors)
    return can_begin_again and state.may_form_anew and state.policy.max_size > 1


def _explain_launch(former: WorkerRecord | None, *, is_first: bool) -> str:
    if is_first:
        return "placed"
    return "there is room for it" if former is None else f"in place of {former.worker}"


def _count_staying(state: State) -> int:
    """How many survivors are in slots that are offered."""
    return sum(state.offers(record.worker.slot) for record in state.survivors())


def _list_vacant(state: State) -> Iterator[Slot]:
    """The slots in which a worker may be started, in the order offered; as few are looked at as are asked for."""

    def is_vacant(slot: Slot) -> bool:
        record = state.workers.get(slot)
        return record is None or (record.state is WorkerState.ENDED and not record.is_done)

    blacklist, now, recovery = state.blacklist, state.clock, state.policy.recovery
    open_hosts = (host for host in state.offered if blacklist.is_host_open(host.name, now))
    return (slot for slot in list_slots(open_hosts) if is_vacant(slot) and blacklist.is_open(slot, now, recovery))
