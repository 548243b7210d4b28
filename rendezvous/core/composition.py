"""Who is in the next generation, and in which order.

Hosts come in the order of their first survivor, then new hosts in the order in which they are offered; on each host
survivors in their order, then newcomers by slot. So a survivor keeps its place among survivors, and rank 0, whose state
all others copy, is a survivor. A survivor that has not got the state of the others itself does not count as one here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rendezvous.core.model import Assignment, Slot
from rendezvous.core.ranking import rank
from rendezvous.core.records import Standing, WorkerRecord
from rendezvous.core.reports import Decision
from rendezvous.core.state import State


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
    ready = [record for record in state.standing(Standing.READY) if state.offers(record.worker.slot)]
    leaving = [record for record in survivors if record.worker not in staying]
    if not any(not record.is_blank for record in staying.values()):
        leaving.sort(key=lambda record: record.is_blank)
        staying |= {record.worker: record for record in leaving[:1]}
    for record in leaving:
        if len(staying) + len(ready) >= state.policy.min_size:
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
    ranked = (*(each for each in survivors if not each.is_blank), *(each for each in survivors if each.is_blank))
    by_slot = sorted(newcomers, key=lambda record: record.worker.slot.index)
    members: dict[str, list[WorkerRecord]] = {record.worker.slot.host: [] for record in ranked}
    new = {record.worker.slot.host for record in by_slot}
    members |= {host: [] for host in hosts if host in new and host not in members}
    for record in (*ranked, *by_slot):
        members.setdefault(record.worker.slot.host, []).append(record)
    return tuple(record for each in members.values() for record in each)


def foresee(state: State, newcomers: Iterable[WorkerRecord]) -> dict[Slot, Assignment]:
    """Everybody's numbers, if all newcomers were taken in now: the best that can be told to those that start."""
    hosts = [host.name for host in state.offered]
    members = [record.worker.slot for record in arrange(state.survivors(), tuple(newcomers), hosts)]
    return dict(zip(members, rank(members), strict=True))
