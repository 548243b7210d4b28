"""How long an agent may be silent: the rules of time, without a clock.

A lease belongs to an agent, not to a worker: a worker's threads can starve for seconds while a C call holds the
interpreter lock, and must not be called dead for it. When two ticks are further apart than half a lease, it was this
machine that slept: all leases start anew, and every other limit moves by as much, for what came in meanwhile has not
been seen. So it is with the first tick: what was before it has no known time. The job's own clock (`State.clock`)
stands still meanwhile, so what is measured with it need not be moved.

Shortage: there are too few slots to start with, or too few workers to go on; for how long the job waits for more.
"""

from collections.abc import Collection
from dataclasses import replace

from rendezvous.core.model import Worker
from rendezvous.core.outcome import Outcome, run_short, time_out
from rendezvous.core.state import State
from rendezvous.core.table import Table
from rendezvous.core.workers import Standing, WorkerRecord

LEAST_SLEEP_SECONDS = 1.0  # a tick may be late on a busy machine, and a lease shorter than two ticks must still run out


def advance(state: State, now: float) -> State:
    """Set the clock forward; after a sleep of this machine nobody has less time left than before."""
    gap_seconds = now - state.now
    slept = gap_seconds > max(state.policy.lease_seconds / 2, LEAST_SLEEP_SECONDS)
    if state.started is not None and not slept:
        return replace(state, now=now)
    return replace(
        state,
        now=now,
        started=now if state.started is None else state.started + gap_seconds,
        last_heard=Table.of((host, None if heard is None else now) for host, heard in state.last_heard.items()),
        waiting_since=None if state.waiting_since is None else state.waiting_since + gap_seconds,
        deadline=None if state.deadline is None else state.deadline + gap_seconds,
        slept_seconds=state.slept_seconds + gap_seconds,
    )


def hear(state: State, host: str) -> State:
    """Renew a host's lease."""
    return replace(state, last_heard=state.last_heard.replace(host, state.now))


def start_leases(state: State, hosts: Collection[str]) -> State:
    """Let the lease of those hosts begin that have not reported: their workers' joins came through their agents."""
    for host in unheard_hosts(state):
        if host in hosts:
            state = hear(state, host)
    return state


def silent_hosts(state: State) -> tuple[str, ...]:
    """Hosts with workers whose agent has been silent for longer than its lease, counted from when a report was due."""
    return tuple(
        host
        for host, heard in state.last_heard.items()
        if heard is not None
        and state.now - heard > state.policy.silence_seconds
        and any(record.standing is not Standing.ENDED for record in state.on(host))
    )


def is_lost(state: State, host: str) -> bool:
    """Nothing more comes from this host: its workers are gone without a word how, or its agent is silent for too long.

    Other than for `silent_hosts`, its workers may have ended: so one asks who waits for what they wrote last.
    """
    if host not in state.hosts:
        return True
    heard = state.last_heard[host]
    return (heard is not None and state.now - heard > state.policy.silence_seconds) or any(
        record.standing is Standing.ENDED and record.returncode is None for record in state.on(host)
    )


def unheard_hosts(state: State) -> tuple[str, ...]:
    """Hosts whose agent has not reported at all."""
    return tuple(host for host, heard in state.last_heard.items() if heard is None)


def start_is_overdue(state: State, since: float | None) -> bool:
    """The start timeout has passed since then."""
    return since is not None and state.now - since > state.policy.start_timeout_seconds


def find_overdue(state: State, host: str) -> str | None:
    """Why this host, whose agent has not reported at all, is given up; None while it still may report."""
    limit_seconds = state.policy.start_timeout_seconds
    since = [record.since for record in state.on(host) if record.standing is not Standing.ENDED]
    if not since or state.clock - min(since) <= limit_seconds:
        return None
    return f"its agent did not report within {limit_seconds:g} s (--start-timeout)"


def find_late(state: State) -> tuple[WorkerRecord, ...]:
    """Those that were started beside the newest generation, and have not joined within the start timeout."""
    if not state.number or not state.count(Standing.INTENDED):
        return ()
    limit_seconds = state.policy.start_timeout_seconds
    return tuple(record for record in state.standing(Standing.INTENDED) if state.clock - record.since > limit_seconds)


def find_missing(state: State) -> tuple[Worker, ...]:
    """Those for whom the others wait in `init()`."""
    if state.waiting_since is None:
        return ()
    return tuple(record.worker for record in state.standing(Standing.INTENDED, Standing.MEMBER))


def explain_overdue_start(state: State) -> str | None:
    """One sentence when the job did not start in time, naming who is missing; None while it still may."""
    limit = f"{state.policy.start_timeout_seconds:g} s"
    if (silent := unheard_hosts(state)) and start_is_overdue(state, state.started):
        return f"no agent reported from {', '.join(silent)} within {limit} (--start-timeout)"
    if start_is_overdue(state, state.waiting_since):
        missing = [f"{state.rank_of(worker)} ({worker})" for worker in find_missing(state)]
        stacks = "its Python stack is" if len(missing) == 1 else "their Python stacks are"
        return (
            f"{state.waiting} of {state.waiting + len(missing)} workers called hvd.init(), but within {limit} "
            f"(--start-timeout) rank {', rank '.join(missing)} did not; {stacks} shown above"
        )
    return None


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
