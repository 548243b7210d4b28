"""The rules that change nothing but what was logged."""

import math
from collections.abc import Iterator
from dataclasses import replace

from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import Effects, Log
from rendezvous.core.outcome import describe_reset_limit
from rendezvous.core.state import State


def log_closings(state: State) -> tuple[State, Effects]:
    """Slots or hosts were closed: for how long no worker is started there, and why."""
    if state.blacklist is state.logged_blacklist:
        return state, ()
    return replace(state, logged_blacklist=state.blacklist), tuple(_describe_closings(state))


def _describe_closings(state: State) -> Iterator[Log]:
    before, now, recovery = state.logged_blacklist, state.blacklist, state.policy.recovery
    for slot, known in now.slots.items():
        if known != before.slots.get(slot) and known.failures >= recovery.failures_per_slot:
            cooldown = f"{recovery.forgiveness_seconds:g} s (--slot-cooldown)"
            yield Log(f"slot {slot} is closed for {cooldown}: {known.explain_closing()}")
    for host, closing in now.hosts.items():
        if closing != before.hosts.get(host) and closing.until < math.inf:  # else its loss was logged
            cooldown = f"{closing.until - state.clock:g} s (--blacklist-cooldown-range)"
            yield Log(f"host {host} is closed for {cooldown}: {closing.reason}", host=host)


def log_reset_limit(state: State) -> tuple[State, Effects]:
    """Hosts have come or gone when the reset limit allows no further generation: what happens to them."""
    known = state.slots, state.number
    is_limited = state.policy.is_elastic and state.phase is Phase.RUNNING and not state.may_reset
    if not is_limited or state.logged_limit == known:
        return state, ()
    used = dict.fromkeys(record.worker.slot.host for record in state.survivors())
    parts = []
    if kept := [host for host in used if host not in state.slots]:
        parts.append(f"the workers on {', '.join(kept)} stay until they end")
    unused = [host for host in state.slots if host not in used]
    if unused and len(state.survivors()) < state.policy.max_size:
        parts.append(f"no worker is started on {', '.join(unused)}")
    logs = (Log(f"{describe_reset_limit(state.resets)}: {', and '.join(parts)}"),) if parts else ()
    return replace(state, logged_limit=known), logs
