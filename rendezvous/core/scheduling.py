"""Which slots get a worker, which workers are stopped, which agents are released, and the members of a generation.

Before the first generation, each offered slot gets a worker, up to the largest size, once enough slots are offered to
start. Slots are used host by host, in the order of the list. Later a worker is started only if it can be added at a
commit: all members must be able to call their function again. Any open slot will do; often it is a lost worker's.

In a generation, hosts come in the order of their first survivor, then new hosts in the order of the offer. On each
host, survivors come in their former order, then new workers by slot. So a survivor keeps its place among survivors, and
rank 0, whose state the others copy, is a survivor. Survivors that still need the state come after the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rendezvous.core.lifecycle import Phase, WorkerRecord, WorkerState
from rendezvous.core.messages import (
    Dismiss,
    Effect,
    Effects,
    Launch,
    Log,
    Refuse,
    Reported,
    Terminate,
    TooFewSlotsError,
)
from rendezvous.core.model import Assignment, Host, Round, Slot, Worker, rank
from rendezvous.core.outcome import SIGABRT
from rendezvous.core.reports import Action, RecoveryDecision, trains
from rendezvous.core.state import State


def place(hosts: Sequence[Host], min_size: int, max_size: int) -> tuple[Slot, ...]:
    """Choose up to `max_size` slots, all slots of a host before the next host's.

    Raises:
        TooFewSlotsError: the hosts offer fewer than `min_size` slots.
    """
    slots = tuple(islice((Slot(host.name, index) for host in hosts for index in range(host.slots)), max_size))
    if len(slots) < min_size:
        raise TooFewSlotsError(hosts, min_size)
    return slots


@dataclass(frozen=True, slots=True)
class Composition:
    """The next generation.

    members: the workers in rank order. added: the members that are new. removed: survivors that are not in it.
    """

    members: tuple[WorkerRecord, ...]
    added: tuple[WorkerRecord, ...] = ()
    removed: tuple[WorkerRecord, ...] = ()


def compose(state: State, action: Action, survivors: Sequence[WorkerRecord]) -> Composition:
    """Choose the members of the next generation.

    At a RESIZE or RESTORE, survivors on slots that are no longer offered are removed. Some stay for one more generation
    if the job had too few workers without them, or no worker with the state.
    """
    if action is Action.RETRY:
        return Composition(arrange(survivors, (), state.slots))

    staying = {record.worker: record for record in survivors if state.offers(record.worker.slot)}
    ready = [record for record in state.list_workers(WorkerState.READY) if state.offers(record.worker.slot)]
    leaving = [record for record in survivors if record.worker not in staying]
    if all(record.needs_state for record in staying.values()):
        leaving.sort(key=lambda record: record.needs_state)
        staying |= {record.worker: record for record in leaving[:1]}
    for record in leaving:
        if len(staying) + len(ready) >= state.least_size:
            break
        staying[record.worker] = record

    kept = [record for record in survivors if record.worker in staying]
    by_offer = arrange((), ready, state.slots)
    added = by_offer[: max(0, state.policy.max_size - len(kept))]
    removed = tuple(record for record in survivors if record.worker not in staying)
    return Composition(arrange(kept, added, state.slots), added, removed)


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


def estimate_assignments(state: State, newcomers: Iterable[WorkerRecord]) -> dict[Slot, Assignment]:
    """The assignments if all new workers were added now: an estimate for their environment."""
    members = [record.worker.slot for record in arrange(state.survivors(), tuple(newcomers), state.slots)]
    return dict(zip(members, rank(members), strict=True))


_UNKNOWN = Assignment(0, 1, 0, 1, 0, 1)
_JOINED = frozenset({WorkerState.WAITING, WorkerState.READY, WorkerState.MEMBER})


def schedule(state: State) -> tuple[State, Effects]:
    """Stop new workers that are not wanted, dismiss agents without workers, and launch workers in open slots."""
    if state.refusal is not None or state.stops_at is not None:
        return state, ()
    if state.workers and (state.is_one_world or not state.policy.is_elastic):
        return state, ()  # the placement of a static job, and that of a round, is fixed
    state, retired = _retire_unwanted(state)
    state, dismissed = dismiss_idle(state)
    state, launched = _launch(state)
    return state, retired + dismissed + launched


def retire(
    state: State,
    records: Iterable[WorkerRecord],
    reason: str,
    grace_seconds: float | None = None,
    *,
    lets_save: bool = False,
) -> tuple[State, Effects]:
    """Stop these workers, which are no longer wanted; their slots are free when they have ended.

    grace_seconds: the time until SIGKILL; None for that of the job.
    lets_save: see `Terminate`.
    """
    if grace_seconds is None:
        grace_seconds = state.policy.grace_seconds
    leaves_by = state.clock + grace_seconds
    listed = tuple(records)
    effects: list[Effect] = []
    for record in listed:
        if record.state in _JOINED:
            effects.append(Refuse(record.worker, reason, leaves=True))
        effects.append(Terminate(record.worker, grace_seconds, reason, lets_save=lets_save))
    leaving = (
        replace(record, state=WorkerState.LEAVING, report=None, reason=reason, leaves_by=leaves_by) for record in listed
    )
    return state.with_records(leaving), tuple(effects)


def refuse(state: State, records: Iterable[WorkerRecord], reason: str) -> tuple[State, Effects]:
    """Tell these workers that no further generation includes them."""
    refused = tuple(replace(each, state=WorkerState.REFUSED, report=None) for each in records)
    return state.with_records(refused), tuple(Refuse(each.worker, reason) for each in refused)


def stop_workers(state: State, grace_seconds: float) -> tuple[State, Effects]:
    """The outcome is decided: stop the remaining workers."""
    if state.outcome is None:
        raise ValueError("workers are stopped when the outcome is decided")
    reason, usual = state.outcome.reason, state.outcome.stop_signal
    alive, deadline = state.alive(), state.now + grace_seconds + state.policy.lease_seconds
    if state.phase is Phase.DRAINING and state.deadline is not None:
        deadline = min(deadline, state.deadline)
    elif state.phase is not Phase.RESTARTING:
        # In a restart they were stopped before.
        state = note_stopped(state)
    workers = (record.worker for record in alive)
    effects = tuple(
        Terminate(worker, grace_seconds, reason, signal=SIGABRT if worker in state.stuck else usual)
        for worker in workers
    )
    return replace(state.enter(Phase.DRAINING), deadline=deadline), effects


def note_stopped(state: State) -> State:
    """The state in which the members that are running now are those that were stopped."""
    has_begun = [each for each in state.alive() if state.last_heard[each.worker.slot.host] is not None]
    members = (each.assignment.rank for each in has_begun if state.is_member(each))
    return replace(state, stopped=tuple(sorted(members)))


def reconcile(state: State, event: Reported) -> Effects:
    """Compare the workers that should run on a host with those that do, and repeat lost orders."""
    running = frozenset(event.running)
    intended = {record.worker: record for record in state.on(event.host) if record.state is not WorkerState.ENDED}
    missing = make_launches(
        state,
        [
            record
            for worker, record in intended.items()
            if worker not in running and record.state is WorkerState.INTENDED
        ],
        "the agent does not have it",
    )

    surplus = tuple(
        Terminate(worker, 0.0, "it is no longer wanted") for worker in event.running if worker not in intended
    )
    leaving = tuple(
        Terminate(worker, max(0.0, record.leaves_by - state.clock), record.reason)
        for worker, record in intended.items()
        if worker in running and record.state is WorkerState.LEAVING
    )
    return missing + surplus + leaving


def find_newcomers(state: State) -> tuple[WorkerRecord, ...]:
    """The workers that are in no generation yet; before the first one, all."""
    waiting = {WorkerState.INTENDED, WorkerState.READY}
    if not state.number:
        waiting.add(WorkerState.WAITING)
    return state.list_workers(*waiting)


def _retire_unwanted(state: State) -> tuple[State, Effects]:
    """Stop new workers on slots that are no longer offered, and those beyond the largest size."""
    newcomers = find_newcomers(state)
    if not newcomers:
        return state, ()
    if state.number and not state.may_reset:
        return retire(state, newcomers, "the membership can no longer change (--reset-limit)")

    effects: Effects = ()
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
    """Why a slot is no longer offered, in one sentence."""
    is_listed = slot.host in state.slots
    if is_listed:
        return f"host {slot.host} offers fewer slots now"
    return _explain_absence(state, slot.host)


def _explain_absence(state: State, host: str) -> str:
    if host in state.drained:
        return f"host {host} got a stop notice"
    return f"host {host} is no longer listed"


def dismiss_idle(state: State) -> tuple[State, Effects]:
    """Release the agents of hosts that the job has left, and that have no workers."""
    effects: list[Effect] = []
    for host in tuple(state.hosts):
        if host not in state.slots and all(record.state is WorkerState.ENDED for record in state.on(host)):
            state = state.dismiss(host, is_lost=False)
            effects.append(Dismiss(host, state.tenures[host], _explain_absence(state, host)))
    return state, tuple(effects)


def _launch(state: State) -> tuple[State, Effects]:
    is_first = not state.workers
    if state.number and not _can_add(state, state.survivors()):
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
    numbers = estimate_assignments(state, (*newcomers, *new))
    is_round = is_first or _begins_again(state, len(slots))
    records = [replace(record, assignment=numbers[record.worker.slot], starts_alone=not is_round) for record in new]
    effects: list[Effect] = []

    state = state.with_slots(records)
    if is_first:
        state = replace(state, short_since=None)
    if is_round:
        state = begin_round(replace(state, rounds=state.rounds + (not is_first)), slots)
    else:
        state = replace(state, files_since=None)

    for record in records:
        slot = record.worker.slot
        effects += make_launches(state, [record], _explain_launch(former[slot], is_first=is_first))
        if former[slot] is not None:
            effects.append(Log(f"a new worker is started in slot {slot}", host=slot.host))
    may_be_world = state.policy.restarts.needs_world and not (is_round or state.number or state.waiting)
    if may_be_world and state.policy.may_restart and not state.logged_alone:
        state = replace(state, logged_alone=True)
        effects.append(Log(_ALONE))
    return state, tuple(effects)


_ALONE = (
    "it starts alone, since no worker has called hvd.init() or opened the port of torch.distributed: with "
    "--max-restarts all workers are started again together"
)


def _begins_again(state: State, slots: int) -> bool:
    """The workers that are started now are a round: no other is left, as in a job of one worker, and none has joined.

    They may be a world of torch.distributed that has not been seen yet. So each gets the variables of one.
    """
    is_sought = state.policy.restarts.needs_world and not state.has_world
    if not is_sought or state.number or slots < state.policy.min_size:
        return False
    return state.ended == len(state.workers) and not any(each.is_done for each in state.workers.values())


def begin_round(state: State, slots: Iterable[Slot]) -> State:
    """The state in which all workers of a round are started together, in these slots, in rank order."""
    hosts = tuple(dict.fromkeys(slot.host for slot in slots))
    since = state.files_since
    if hosts != state.round_hosts or since is None:
        since = state.rounds if len(hosts) == 1 else None
    return replace(state, round_since=state.clock, round_hosts=hosts, unreported=frozenset(hosts), files_since=since)


def make_launches(state: State, records: Iterable[WorkerRecord], reason: str) -> tuple[Effect, ...]:
    """The orders that start these workers, each with its round, unless it starts alone."""
    return tuple(
        Launch(
            record.worker,
            record.assignment,
            reason,
            is_late=state.number > 0,
            round=None
            if record.starts_alone
            else Round(
                state.rounds,
                state.round_hosts.index(record.worker.slot.host),
                len(state.round_hosts),
                files_since=state.files_since,
            ),
        )
        for record in records
    )


def _can_add(state: State, survivors: tuple[WorkerRecord, ...]) -> bool:
    """A new worker could be added: all members can call their function again, at least one has the state."""
    can_begin_again = all(record.can_restore for record in survivors) and any(each.has_state for each in survivors)
    return can_begin_again and state.may_reset and state.policy.max_size > 1


def is_never_replaced(state: State, decision: RecoveryDecision) -> bool:
    """A worker is lost, and the others train outside of a function that newcomers could enter with them."""
    survivors = state.survivors()
    if decision.action is not Action.RETRY or state.generation is None or state.policy.max_size == 1:
        return False
    if len(survivors) == len(state.generation.members) or any(each.has_state or each.had_state for each in survivors):
        return False
    return any(each.report is not None and trains(each.report) for each in survivors)


def _explain_launch(former: WorkerRecord | None, *, is_first: bool) -> str:
    if is_first:
        return "placed"
    if former is not None:
        return f"in place of {former.worker}"
    return "there is room for it"


def _count_staying(state: State) -> int:
    """How many survivors are on offered slots."""
    return sum(state.offers(record.worker.slot) for record in state.survivors())


def list_open_slots(state: State) -> tuple[Slot, ...]:
    """The slots for a round that starts when all workers have ended, in rank order."""
    return tuple(islice(_list_vacant(state), state.policy.max_size))


def _list_vacant(state: State) -> Iterator[Slot]:
    """The slots in which a worker may be started, in the order of the offer; lazily, since there may be thousands."""

    def is_vacant(slot: Slot) -> bool:
        record = state.workers.get(slot)
        return record is None or (record.state is WorkerState.ENDED and not record.is_done)

    blacklist, now, recovery = state.blacklist, state.clock, state.policy.recovery
    open_hosts = ((host, count) for host, count in state.slots.items() if blacklist.is_host_open(host, now))
    slots = (Slot(host, index) for host, count in open_hosts for index in range(count))
    return (slot for slot in slots if is_vacant(slot) and blacklist.is_open(slot, now, recovery))
