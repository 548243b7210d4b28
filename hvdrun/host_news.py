"""Sentences about hosts that come, go, are closed, or cannot be used: values in, text without a full stop out."""

from collections.abc import Collection, Iterator, Sequence

from rendezvous.core.blame import Blame
from rendezvous.core.model import Host
from rendezvous.core.outcome import describe_reset_limit
from rendezvous.core.state import State


def describe_closed(state: State, before: Blame, lost: Collection[str]) -> Iterator[str]:
    """The slots and hosts in which no worker is started for a while from now on, a sentence each.

    before: what was held against them when this was told last; lost: the hosts that were lost.
    """
    recovery = state.policy.recovery
    for slot, blame in state.blame.slots.items():
        if blame != before.slots.get(slot) and blame.failures >= recovery.failures_per_slot:
            most = recovery.failures_per_slot
            failures = f"{most} failure{'' if most == 1 else 's'} (--slot-failures)"
            why = f"{failures} of workers that had trained no steps, or a command that cannot be started, close a slot"
            yield f"the slot {slot} is left alone for {recovery.forgiveness_seconds:g} s (--slot-cooldown): {why}"
    for host, closing in state.blame.hosts.items():
        if closing != before.hosts.get(host):
            why = "it was lost" if host in lost else "workers have failed in half of its slots or more"
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
    came = [f"{host.name} ({_count_slots(host.slots)})" for host in now if host.name not in former]
    gone = [host.name for host in before if host.name not in present]
    others = [
        f"{host.name} ({_count_slots(host.slots)}, before {former[host.name]})"
        for host in now
        if former.get(host.name, host.slots) != host.slots
    ]
    if came:
        yield f"the script names new hosts: {', '.join(came)}"
    if gone:
        yield f"the script does not name these hosts any more: {', '.join(gone)}"
    if others:
        yield f"the script names other numbers of slots: {', '.join(others)}"


def _count_slots(slots: int) -> str:
    return f"{slots} slot{'' if slots == 1 else 's'}"
