"""Losses: when a worker or a host counts as lost, and what that means for the job.

A lease belongs to an agent, not to a worker: a worker's threads can starve for seconds while a C call holds the
interpreter lock, and must not be called dead for it. The rules of this file say which time limits are over; each takes
the state, and returns it as it is where nothing is.

A member's loss interrupts its generation: the others report, and are in the next one. Before the first generation, and
for a worker that is in none yet, only its slot gets another worker.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rendezvous.core.lifecycle import WorkerRecord, WorkerState
from rendezvous.core.messages import Dismiss, Effect, Level, Log, Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import (
    SIGKILL,
    Outcome,
    blame_host,
    fail_to_join,
    fail_to_report,
    run_short,
    time_out,
)
from rendezvous.core.reports import JoinReason
from rendezvous.core.state import Phase, State


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
        and any(record.state is not WorkerState.ENDED for record in state.on(host))
    )


def is_lost(state: State, host: str) -> bool:
    """Nothing more comes from this host: its workers are gone without a word how, or its agent is silent for too long.

    Other than for `silent_hosts`, its workers may have ended: so one asks who waits for what they wrote last.
    """
    if host not in state.hosts:
        return True
    heard = state.last_heard[host]
    return (heard is not None and state.now - heard > state.policy.silence_seconds) or any(
        record.state is WorkerState.ENDED and record.returncode is None for record in state.on(host)
    )


def unheard_hosts(state: State) -> tuple[str, ...]:
    """Hosts whose agent has not reported at all."""
    return tuple(host for host, heard in state.last_heard.items() if heard is None)


def lose_host(state: State, host: str, reason: str) -> tuple[State, tuple[Effect, ...]]:
    """A host is gone with its workers; one whose workers had ended, or were leaving a drained one, is no loss."""
    if host not in state.hosts:
        return state, ()
    is_drained, former = host in state.drained, [each for each in state.on(host) if each.state is not WorkerState.ENDED]
    outcome = blame_host(host, reason)
    dismissal = Dismiss(host, outcome.reason, Level.WARNING)
    if all(is_drained and each.state is WorkerState.LEAVING for each in former):
        if not state.policy.is_elastic:
            return state, ()
        if is_drained:
            dismissal = Dismiss(host, outcome.reason, is_drained=True)
        return state.with_host_ended(host, -SIGKILL).without_host(host), (dismissal,)
    state = replace(state, failures=state.failures + 1)
    if not survives(state):
        state = end(state.with_host_ended(host), outcome)
        return (state, ()) if state.outcome is not None else (state.without_host(host), (dismissal,))
    if not is_drained:
        state = replace(state, blacklist=state.blacklist.close_host(host, state.clock, state.policy.recovery))
    return go_on(state.with_host_ended(host, -SIGKILL).without_host(host), former, outcome), (dismissal,)


def evict(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome]
) -> tuple[State, tuple[Effect, ...]]:
    """Give up workers that the others have waited for in vain: they are killed, and count as lost from now on."""
    state, effects, outcome = give_up_workers(state, records, explain)
    if outcome is None:
        return state, ()
    return (go_on(state, records, outcome) if survives(state) else end(state, outcome)), effects


def give_up_workers(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome], *, weight: int = 1
) -> tuple[State, tuple[Effect, ...], Outcome | None]:
    """Kill workers that are alive; and how the job ends if it does not survive that, None where there are none.

    explain: why, by the worker's rank.
    weight: how many failures of its slot each counts for; 1: as many as if it had failed by itself.
    """
    effects: list[Effect] = []
    first: Outcome | None = None
    for each in records:
        outcome = explain(each.worker, each.assignment.rank)
        first = first or outcome
        leaving = replace(each, state=WorkerState.LEAVING, report=None, reason=outcome.reason, leaves_by=state.clock)
        state = replace(state.with_records([leaving]), failures=state.failures + 1)
        state = count_failure(state, each) if weight == 1 else count_slot_failure(state, each.worker.slot, weight)
        effects += [Log(outcome.reason, Level.WARNING), Terminate(each.worker, 0.0, outcome.reason)]
    return state, tuple(effects), first


def settle_suspicions(state: State, *, has_committed: bool) -> State:
    """The newest generation's survivors have reported: its members have committed steps together, or they have not."""
    suspects = state.blacklist.suspects
    state = replace(state, blacklist=replace(state.blacklist, suspects=()))
    if has_committed:
        members = (each for each in state.survivors() if not each.has_committed)
        return state.with_records([replace(each, has_committed=True) for each in members])
    for slot in suspects:
        state = count_slot_failure(state, slot)
    return state


def count_failure(state: State, former: WorkerRecord) -> State:
    """A worker has failed, by itself or by what was done to it: its slot is blamed, unless it had made progress."""
    if former.has_committed:
        return state
    if state.number and state.is_member(former):
        return replace(state, blacklist=state.blacklist.suspect_slot(former.worker.slot))
    return count_slot_failure(state, former.worker.slot)


def count_slot_failure(state: State, slot: Slot, weight: int = 1) -> State:
    """A slot has failed, which may close it."""
    blacklist = state.blacklist.count_failure(
        slot, state.find_offered(slot.host), state.clock, state.policy.recovery, weight
    )
    return replace(state, blacklist=blacklist)


def survives(state: State) -> bool:
    """The job survives its failures so far.

    Before the first generation no more may fail than it takes to close every slot. Once a worker has ended well, none
    may fail: one worker's success does not hide another's failure.
    """
    most = state.policy.recovery.failures_per_slot * max(state.policy.min_size, state.slots_offered)
    starts = state.number > 0 or state.failures <= most
    return starts and state.refusal is None and state.policy.allows(state.failures)


def go_on(state: State, former: Sequence[WorkerRecord], outcome: Outcome) -> State:
    """The job survives the failure of these workers: the loss of a member interrupts its generation."""
    if state.number and not any(each.generation == state.number for each in former):
        return state
    state = replace(state, cause=state.cause or outcome)
    return state.with_interruption(outcome.reason) if state.number else state


def end(state: State, outcome: Outcome) -> State:
    """The job does not survive a failure, and ends with its first one.

    Once a member has ended well, the others may be past their training, and write the last checkpoint: nobody ends
    them. What they still wait for cannot come: they learn that, and that no generation follows.
    """
    if state.refusal is None or not state.number or not state.policy.is_elastic:
        return replace(state, outcome=outcome)
    if state.cause is not None:
        return state  # they know already
    refusal = f"{outcome.reason}; {state.refusal}"
    return replace(state.with_interruption(outcome.reason), cause=outcome, refusal=refusal)


def lose_silent_host(state: State) -> tuple[State, tuple[Effect, ...]]:
    """The lease of an agent has run out."""
    silent = silent_hosts(state)
    if not silent:
        return state, ()
    return lose_host(state, silent[0], f"its agent was silent for {state.policy.lease_seconds:g} s (--lease)")


def lose_unheard_host(state: State) -> tuple[State, tuple[Effect, ...]]:
    """An agent that was started for an elastic job has never reported."""
    limit_seconds = state.policy.start_timeout_seconds
    for host in unheard_hosts(state) if state.policy.is_elastic else ():
        since = [each.since for each in state.on(host) if each.state is not WorkerState.ENDED]
        if since and state.clock - min(since) > limit_seconds:
            return lose_host(state, host, f"its agent did not report within {limit_seconds:g} s (--start-timeout)")
    return state, ()


def lose_late_newcomers(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Workers that were started beside the newest generation have not joined."""
    if not state.number or not state.count(WorkerState.INTENDED) or state.clock < state.settled_until:
        return state, ()
    limit_seconds = state.policy.start_timeout_seconds
    late = [each for each in state.list_workers(WorkerState.INTENDED) if state.clock - each.since > limit_seconds]
    return evict(state, late, lambda worker, rank: fail_to_join(worker, rank, limit_seconds))


def lose_late_survivors(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Members have not reported after an interruption, or have not come to the commit at which the others wait."""
    limit_seconds = state.policy.report_seconds
    since = state.waiting_since if state.number and state.phase is Phase.FORMING else None
    is_over = state.phase is Phase.REFORMING and state.deadline is not None and state.now > state.deadline
    is_over |= since is not None and state.now - since > limit_seconds and not waits_for_init(state)
    if not is_over:
        return state, ()
    late = state.list_workers(WorkerState.MEMBER)
    return evict(state, late, lambda worker, rank: fail_to_report(worker, rank, limit_seconds))


def limit_start(state: State) -> tuple[State, tuple[Effect, ...]]:
    """The job has not started in time, or not all have called `init()` again."""
    if state.phase is not Phase.FORMING or not waits_for_init(state):
        return state, ()
    if state.policy.is_elastic and not state.number and state.waiting >= state.policy.min_size:
        return state, ()  # those that are there begin without the others
    if state.policy.is_elastic and not start_is_overdue(state, state.waiting_since):
        return state, ()
    reason = _explain_overdue_start(state)
    if reason is None:
        return state, ()
    stuck = () if unheard_hosts(state) else find_missing(state)  # where nothing is heard of a host, all may be well
    return replace(state, outcome=time_out(reason), stuck=stuck), ()


def waits_for_init(state: State) -> bool:
    """Before the first generation, or after `shutdown()`: members that begin again at a commit come at once."""
    if not state.number or not state.policy.is_elastic:
        return True
    reports = (each.report for each in state.list_workers(WorkerState.WAITING))
    return any(report is not None and report.reason is JoinReason.BEGIN for report in reports)


def start_is_overdue(state: State, since: float | None) -> bool:
    """The start timeout has passed since then."""
    return since is not None and state.now - since > state.policy.start_timeout_seconds


def find_missing(state: State) -> tuple[Worker, ...]:
    """Those for whom the others wait in `init()`."""
    if state.waiting_since is None:
        return ()
    return tuple(record.worker for record in state.list_workers(WorkerState.INTENDED, WorkerState.MEMBER))


def _explain_overdue_start(state: State) -> str | None:
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


def limit_shortage(state: State) -> tuple[State, tuple[Effect, ...]]:
    """There have been too few slots to start with, or too few workers to go on, for too long."""
    if not state.policy.is_elastic or (state.number and state.phase is not Phase.REFORMING):
        return state, ()
    limit_seconds = state.policy.recovery.elastic_timeout_seconds
    is_over = state.short_since is not None and state.clock - state.short_since > limit_seconds
    if state.number:
        have = state.waiting + state.count(WorkerState.READY)
        outcome = run_short(have, state.policy.min_size, limit_seconds, state.cause)
        return (replace(state, outcome=outcome) if is_over else state), ()
    if state.workers:  # a worker counts when its host's agent has been heard of
        have = sum(state.last_heard.get(each.worker.slot.host) is not None for each in state.alive())
        needed, what = state.policy.min_size, "workers"
    else:
        have, needed, what = state.slots_offered, state.policy.slots_to_start, "slots"
    if have >= needed:
        return (state if state.short_since is None else replace(state, short_since=None)), ()
    if state.short_since is None:
        return replace(state, short_since=state.clock), ()
    if not is_over:
        return state, ()
    limit = f"{limit_seconds:g} s (--elastic-timeout)"
    reason = f"the job needs {needed} {what} to start, and there were only {have} for {limit}"
    return replace(state, outcome=time_out(reason)), ()
