"""Shortage: there are too few slots to start with, or too few workers to go on; for how long the job waits for more."""

from dataclasses import replace

from rendezvous.core.outcome import Outcome, run_short, time_out
from rendezvous.core.state import State


def watch_start(state: State) -> tuple[State, Outcome | None]:
    """Before the first generation: how the job ends if there was too little to start with for too long.

    A worker counts when its host's agent has been heard of: one that never reports is given up, and started again.
    """
    policy = state.policy
    limit_seconds = policy.recovery.elastic_timeout_seconds
    if state.workers:
        have = sum(state.last_heard.get(record.worker.slot.host) is not None for record in state.alive())
        needed, what = policy.min_size, "workers"
    else:
        have, needed, what = state.slots_offered, policy.slots_to_start, "slots"
    if have >= needed:
        return (state if state.short_since is None else replace(state, short_since=None)), None
    if state.short_since is None:
        return replace(state, short_since=state.clock), None
    if state.clock - state.short_since <= limit_seconds:
        return state, None
    limit = f"{limit_seconds:g} s (--elastic-timeout)"
    return state, time_out(f"the job needs {needed} {what} to start, and there were only {have} for {limit}")


def watch_workers(state: State, have: int) -> Outcome | None:
    """While the survivors wait for others: how the job ends if there have been too few workers for too long."""
    limit_seconds = state.policy.recovery.elastic_timeout_seconds
    if state.short_since is None or state.clock - state.short_since <= limit_seconds:
        return None
    return run_short(have, state.policy.min_size, limit_seconds, state.cause)
