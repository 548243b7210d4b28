"""Sentences about hosts that come, go, are closed, or cannot be used: values in, text without a full stop out."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from hvdrun.spec.hosts import count_slots
from rendezvous.core.failures import Blacklist
from rendezvous.core.model import Host
from rendezvous.core.outcome import describe_reset_limit
from rendezvous.core.state import State

TOLD_EACH = 5  # losses of one kind, in this time:
COUNT_SECONDS = 60.0  # then the sum of the further ones is told


class LossCounter:
    """Of many losses that differ only in the host the first are told one by one, the others counted for a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self.counted: set[str] = set()  # the hosts whose last loss was only counted

    def note(self, host: str, sentence: str) -> bool:
        """A host was lost, and why; whether that is to be told by itself."""
        now = self._clock()
        kind = self._kinds.setdefault(re.sub(rf"(?<![\w.-]){re.escape(host)}\b", "", sentence), _Kind(now))
        if not kind.counted and now - kind.since >= COUNT_SECONDS:
            kind.told, kind.since = 0, now
        kind.told += 1
        if kind.told <= TOLD_EACH:
            self.counted.discard(host)
            return True
        self.counted.add(host)
        kind.counted += 1
        kind.last = sentence
        return False

    def sum_up(self, *, is_last: bool = False) -> Iterator[str]:
        """What was counted since it was told last, if that is some time ago, or nothing will follow."""
        now = self._clock()
        for kind in self._kinds.values():
            if kind.counted and (is_last or now - kind.since >= COUNT_SECONDS):
                losses = "once more" if kind.counted == 1 else f"{kind.counted} times more"
                yield f"this has happened {losses}, the last time: {kind.last}"
                kind.counted, kind.since = 0, now


@dataclass(slots=True)
class _Kind:
    """Losses that differ only in the host.

    since: when the first of them was told, or last their number; told: how many were considered since then, or since
        there were too many; counted: how many were not told by themselves, and last: the last of these.
    """

    since: float
    told: int = 0
    counted: int = 0
    last: str = ""


def describe_closed(state: State, before: Blacklist, lost: Collection[str], counted: Collection[str]) -> Iterator[str]:
    """The slots and hosts in which no worker is started for a while from now on, a sentence each.

    before: what was held against them when this was told last; lost: the hosts that were lost; counted: those of them
    of which nothing is told.
    """
    recovery = state.policy.recovery
    most = recovery.failures_per_slot
    failures = f"{most} failure{'' if most == 1 else 's'} (--slot-failures)"
    causes = f"{failures} of workers that had trained no steps, or a command that cannot be started"
    for slot, known in state.blacklist.slots.items():
        if known != before.slots.get(slot) and known.failures >= recovery.failures_per_slot:
            cooldown = f"{recovery.forgiveness_seconds:g} s (--slot-cooldown)"
            yield f"the slot {slot} is left alone for {cooldown}: {causes}, close a slot"
    for host, closing in state.blacklist.hosts.items():
        if closing != before.hosts.get(host) and host not in counted:
            why = "it was lost" if host in lost else f"half of its slots or more are closed: {causes}, close one"
            limit = f"{closing.until - state.clock:g} s (--blacklist-cooldown-range)"
            yield f"the host {host} is left alone for {limit}: {why}"


def describe_limit(state: State) -> str:
    """What becomes of hosts that have come or gone when the job may not be formed anew any more; "" when none have."""
    used = dict.fromkeys(record.worker.slot.host for record in state.survivors())
    listed = dict.fromkeys(host.name for host in state.offered)
    parts = []
    if kept := [host for host in used if host not in listed]:
        parts.append(f"the workers on {', '.join(kept)} stay until they end")
    unused = [host for host in listed if host not in used]
    if unused and len(state.survivors()) < state.policy.max_size:
        parts.append(f"no worker is started on {', '.join(unused)}")
    return f"{describe_reset_limit(state.resets)}: {', and '.join(parts)}" if parts else ""


def describe_changes(before: Sequence[Host], now: Sequence[Host]) -> Iterator[str]:
    """What has become of the hosts, in at most three sentences without a full stop."""
    former, present = ({host.name: host.slots for host in hosts} for hosts in (before, now))
    came = [f"{host.name} ({count_slots(host.slots)})" for host in now if host.name not in former]
    gone = [host.name for host in before if host.name not in present]
    others = [
        f"{host.name} ({count_slots(host.slots)}, before {former[host.name]})"
        for host in now
        if former.get(host.name, host.slots) != host.slots
    ]
    if came:
        yield f"the script names new hosts: {', '.join(came)}"
    if gone:
        yield f"the script does not name these hosts any more: {', '.join(gone)}"
    if others:
        yield f"the script names other numbers of slots: {', '.join(others)}"
