"""Losses: when a worker or a host counts as lost, and what follows for the job.

An agent has a lease, a worker has none: a worker's threads can starve for seconds while a C call holds the interpreter
lock, and it is not dead. The rules of this file find the time limits that have passed. Each takes the state, and
returns it unchanged if its limit has not passed.

A member's loss interrupts its generation: the others report, and are in the next one. A worker that is in no generation
yet is replaced without that.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from rendezvous.core.lifecycle import Phase, WorkerRecord, WorkerState
from rendezvous.core.messages import Dismiss, Effect, Effects, Level, Log, Lost, Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import (
    SIGKILL,
    Cause,
    Outcome,
    blame_host,
    describe_reset_limit,
    describe_silence,
    fail_to_join,
    fail_to_report,
    lack_slots,
    lack_workers,
    run_short,
    time_out,
)
from rendezvous.core.reports import JoinReason
from rendezvous.core.state import State

KEPT_LOSSES = 5  # the last ones
_CORRECTABLE = frozenset({Cause.WORKER_FAILED, Cause.NOT_RECOVERED})


def renew_lease(state: State, host: str) -> State:
    """Renew a host's lease."""
    return replace(state, last_heard=state.last_heard.replace(host, state.now))


def start_leases(state: State, hosts: Iterable[str]) -> State:
    """Start the lease of hosts that have not reported: a worker's join or exit shows that its agent runs."""
    for host in hosts:
        if state.last_heard[host] is None:
            state = renew_lease(state, host)
    return state


def silent_hosts(state: State) -> tuple[str, ...]:
    """The hosts with workers whose agent's lease has run out."""
    return tuple(
        host
        for host, heard in state.last_heard.items()
        if heard is not None
        and state.now - heard > state.policy.silence_seconds
        and any(record.state is not WorkerState.ENDED for record in state.on(host))
    )


def is_lost(state: State, host: str) -> bool:
    """No more output comes from this host: its workers were lost with it, or its agent's lease has run out.

    Unlike `silent_hosts`, this is also true of a host whose workers have ended: the caller waits for their last output.
    """
    if host not in state.hosts:
        return True
    heard = state.last_heard[host]
    return (heard is not None and state.now - heard > state.policy.silence_seconds) or any(
        record.state is WorkerState.ENDED and record.returncode is None for record in state.on(host)
    )


def unheard_hosts(state: State) -> tuple[str, ...]:
    """The hosts whose agent has not reported yet."""
    return tuple(host for host, heard in state.last_heard.items() if heard is None)


def lose_host(state: State, loss: Lost, *, may_explain: bool = True) -> tuple[State, Effects]:
    """A host is lost. This is no failure if its workers had ended, or were leaving a host that is no longer offered.

    may_explain: where all workers are being stopped, this may be why.
    """
    host = loss.host
    if host not in state.hosts:
        return state, ()
    is_offered, former = host in state.slots, [each for each in state.on(host) if each.state is not WorkerState.ENDED]
    is_failure = any(is_offered or each.state is not WorkerState.LEAVING for each in former)
    if not (is_failure or state.policy.outlives_losses):
        return state, ()

    outcome = blame_host(host, loss.reason, is_refused=loss.is_refused)
    if state.restart is not None:
        state = state.with_surer_cause(outcome) if is_failure and may_explain else state
        is_failure = False
    elif is_failure:
        state = record_loss(replace(state, failures=state.failures + 1), former, outcome)
        if state.outcome is not None:
            return state.with_host_ended(host), ()

    if host in state.unreported:
        state = replace(state, unanswered=state.unanswered | {host})
    if is_offered and (state.refusal is None or state.restart is not None):
        recovery, why = state.policy.recovery, "it cannot be used" if loss.is_refused else "it was lost"
        blacklist = state.blacklist.close_host(host, state.clock, recovery, why)
        state = replace(state, blacklist=blacklist)

    is_lost = is_failure or is_offered
    state = state.with_host_ended(host, -SIGKILL).dismiss(host, is_lost=is_lost)
    dismissal = Dismiss(host, state.tenures[host], outcome.reason, is_lost)
    is_explained = state.restart is not None and state.restart.outcome.host == host
    if not is_lost or is_explained:
        return state, (dismissal,)
    state, log = log_loss(state, outcome)
    return state, (log, dismissal)


def log_loss(state: State, loss: Outcome) -> tuple[State, Log]:
    """Log a loss, and keep it for the page about a job that cannot recover."""
    log = Log(loss.reason.rstrip("."), Level.WARNING, loss.host)
    return replace(state, losses=(*state.losses, loss)[-KEPT_LOSSES:]), log


def evict(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome]
) -> tuple[State, Effects]:
    """Kill workers that have not joined in time; they count as lost."""
    state, effects, outcome = give_up_workers(state, records, explain)
    if outcome is not None:
        return record_loss(state, records, outcome), effects
    return state, effects


def give_up_workers(
    state: State, records: Sequence[WorkerRecord], explain: Callable[[Worker, int], Outcome], obstacle: str = ""
) -> tuple[State, Effects, Outcome | None]:
    """Kill workers that are alive. Also returns the outcome of a job that does not survive it; None without workers.

    explain: makes the outcome of a worker and its rank.
    obstacle: why no worker can run in their slots, which closes them; "" where the next one may.
    """
    effects: list[Effect] = []
    first: Outcome | None = None
    for each in records:
        outcome = explain(each.worker, each.assignment.rank)
        first = first or outcome
        leaving = replace(each, state=WorkerState.LEAVING, report=None, reason=outcome.reason, leaves_by=state.clock)
        state = replace(state.with_records([leaving]), failures=state.failures + 1)
        state = count_failure(state, each, obstacle)
        state, log = log_loss(state, outcome)
        effects += [log, Terminate(each.worker, 0.0, outcome.reason)]
    return state, tuple(effects), first


def settle_suspicions(state: State, *, has_progressed: bool) -> State:
    """All survivors have reported: count the suspected failures, unless the members have completed steps together."""
    suspects = state.blacklist.suspects
    state = replace(state, blacklist=replace(state.blacklist, suspects=()))
    if has_progressed:
        members = (each for each in state.survivors() if not each.has_completed_steps)
        return state.with_records([replace(each, has_completed_steps=True) for each in members])
    for slot in suspects:
        state = count_slot_failure(state, slot)
    return state


def count_failure(state: State, former: WorkerRecord, obstacle: str = "") -> State:
    """Count a worker's failure against its slot, unless the worker had completed steps; an obstacle closes the slot."""
    if obstacle:
        return count_slot_failure(state, former.worker.slot, obstacle)
    if former.has_completed_steps:
        return state
    if state.number and state.is_member(former):
        return replace(state, blacklist=state.blacklist.suspect_slot(former.worker.slot))
    return count_slot_failure(state, former.worker.slot)


def count_slot_failure(state: State, slot: Slot, obstacle: str = "") -> State:
    """Count a failure against a slot, which may close it."""
    offered, recovery = state.slots.get(slot.host, 0), state.policy.recovery
    return replace(state, blacklist=state.blacklist.count_failure(slot, offered, state.clock, recovery, obstacle))


def survives(state: State) -> bool:
    """The job survives the failure of a worker, and its failures so far.

    Before the first generation, as many failures are allowed as close every slot. Once a worker has exited with 0, no
    failure is allowed: one worker's success does not hide another's failure.
    """
    return state.refusal is None and _allows_failures(state)


def _allows_failures(state: State) -> bool:
    if state.is_one_world:
        return False  # none of its workers is replaced alone
    most = state.policy.recovery.failures_per_slot * max(state.policy.min_size, state.slots_offered)
    return (state.number > 0 or state.failures <= most) and state.policy.allows(state.failures)


def record_loss(state: State, former: Sequence[WorkerRecord], outcome: Outcome) -> State:
    """Record the loss of these workers, which may end the job; that of a member interrupts its generation.

    Where no member ran, no success hides a failure: that loss does not end a job in which a worker has exited with 0.
    """
    are_members = any(state.is_member(each) for each in former)
    has_run = are_members and any(state.last_heard[each.worker.slot.host] is not None for each in former)
    if not (survives(state) if has_run else _allows_failures(state)):
        return _end_job(state, outcome)
    if not are_members:
        return state
    state = replace(state, first_failure=state.first_failure or outcome)
    if state.number:
        return state.with_interruption(outcome.reason)
    return state


def _end_job(state: State, outcome: Outcome) -> State:
    """End a job that does not survive a failure, with the first failure as its outcome.

    Once a member has exited with 0, the others may have finished their training, and write the last checkpoint: they
    are not stopped. They are interrupted, since what they wait for cannot complete, and no generation follows.
    """
    if state.refusal is None or not state.number or not state.policy.is_elastic:
        return state.with_end(outcome)
    if state.first_failure is not None:
        return state  # they have been interrupted already
    refusal = f"{outcome.reason}; {state.refusal}"
    return replace(state.with_interruption(outcome.reason), first_failure=outcome, refusal=refusal)


def correct_end(state: State, other: Outcome) -> State:
    """The state in which this end, which was reported after the outcome was decided, is the outcome if it is surer.

    An exit code that is not known to follow from another end gives way only to a kill or a crash.
    """
    outcome = state.outcome
    if outcome is None or outcome.cause not in _CORRECTABLE or other.certainty <= outcome.certainty:
        return state
    is_surer = outcome.blame is not None or (outcome.certainty == 0 and other.is_violent)
    return replace(state, outcome=other) if is_surer else state


def lose_silent_host(state: State) -> tuple[State, Effects]:
    """The lease of an agent has run out."""
    silent = silent_hosts(state)
    if not silent:
        return state, ()
    return lose_host(state, Lost(silent[0], describe_silence(state.policy.lease_seconds)))


def lose_unheard_host(state: State) -> tuple[State, Effects]:
    """An agent that was started for an elastic job has never reported."""
    limit_seconds = state.policy.start_timeout_seconds
    if not state.policy.outlives_losses:
        return state, ()
    for host in unheard_hosts(state):
        since = [each.since for each in state.on(host) if each.state is not WorkerState.ENDED]
        if since and state.clock - min(since) > limit_seconds:
            return lose_host(
                state, Lost(host, f"its agent did not report within {limit_seconds:g} s (--start-timeout)")
            )
    return state, ()


def lose_late_newcomers(state: State) -> tuple[State, Effects]:
    """New workers have not joined within the start timeout."""
    if not state.number or not state.count(WorkerState.INTENDED) or state.clock < state.settled_until:
        return state, ()
    limit_seconds = state.policy.start_timeout_seconds
    late = [each for each in state.list_workers(WorkerState.INTENDED) if state.clock - each.since > limit_seconds]
    return evict(state, late, lambda worker, rank: fail_to_join(worker, rank, limit_seconds))


def lose_late_survivors(state: State) -> tuple[State, Effects]:
    """Members have not reported after an interruption, or have not reached the commit at which the others wait."""
    limit_seconds = state.policy.report_seconds
    since = state.waiting_since if state.number and state.phase is Phase.FORMING else None
    is_over = state.phase is Phase.REFORMING and state.deadline is not None and state.now > state.deadline
    is_over |= since is not None and state.now - since > limit_seconds and not waits_for_init(state)
    if not is_over:
        return state, ()
    late = state.list_workers(WorkerState.MEMBER)
    return evict(state, late, lambda worker, rank: fail_to_report(worker, rank, limit_seconds))


def limit_start(state: State) -> tuple[State, Effects]:
    """The job has not started in time, or not all have called `init()` again."""
    if state.phase is not Phase.FORMING or not waits_for_init(state):
        return state, ()
    if state.policy.is_elastic and not state.number and state.waiting >= state.policy.min_size:
        return state, ()  # those that have joined start without the others
    if state.policy.outlives_losses and not start_is_overdue(state, state.waiting_since):
        return state, ()

    limit_seconds, unheard = state.policy.start_timeout_seconds, unheard_hosts(state)
    limit = f"{limit_seconds:g} s (--start-timeout)"
    if unheard and state.clock - state.on(unheard[0])[0].since > limit_seconds:
        outcome = time_out(f"no agent reported from {', '.join(unheard)} within {limit}")
        return replace(state, outcome=outcome), ()
    if not start_is_overdue(state, state.waiting_since):
        return state, ()

    late = state.list_workers(WorkerState.INTENDED, WorkerState.MEMBER)
    missing = ", rank ".join(f"{each.assignment.rank} ({each.worker})" for each in late)
    stacks = "its Python stack is" if len(late) == 1 else "their Python stacks are"
    outcome = time_out(
        f"{state.waiting} of {state.waiting + len(late)} workers called hvd.init(), but within {limit} "
        f"rank {missing} did not; {stacks} shown above"
    )
    stuck = () if unheard else tuple(each.worker for each in late)  # a missing host explains the others
    return replace(state, outcome=outcome, stuck=stuck), ()


def waits_for_init(state: State) -> bool:
    """Workers wait in `init()`: before the first generation, or after `shutdown()`."""
    if not state.number or not state.policy.is_elastic:
        return True
    reports = (each.report for each in state.list_workers(WorkerState.WAITING))
    return any(report is not None and report.reason is JoinReason.BEGIN for report in reports)


def start_is_overdue(state: State, since: float | None) -> bool:
    """The start timeout has passed since then."""
    return since is not None and state.now - since > state.policy.start_timeout_seconds


def limit_shortage(state: State) -> tuple[State, Effects]:
    """There have been too few slots to start, or too few workers to continue, for the elastic timeout."""
    if not state.policy.outlives_losses or (state.number and state.phase is not Phase.REFORMING):
        return state, ()
    limit_seconds = state.policy.recovery.elastic_timeout_seconds
    is_over = state.short_since is not None and state.clock - state.short_since > limit_seconds
    if state.number:
        have = state.waiting + state.count(WorkerState.READY)
        outcome = run_short(have, state.policy.min_size, limit_seconds, state.first_failure)
        if is_over:
            return replace(state, outcome=outcome), ()
        return state, ()

    have, needed = _count_start(state)
    if have >= needed:
        if state.short_since is not None:
            return replace(state, short_since=None), ()
        return state, ()
    if state.short_since is None:
        return replace(state, short_since=state.clock), ()
    if not is_over:
        return state, ()
    if not state.workers:
        return replace(state, outcome=lack_slots(have, needed, limit_seconds)), ()
    return replace(state, outcome=lack_workers(have, needed, limit_seconds, _find_lack(state))), ()


def _count_start(state: State) -> tuple[int, int]:
    """How many slots, or later workers, there are for the start, and how many it needs.

    A worker counts once its host's agent has reported, also when it has exited with 0.
    """
    if not state.workers:
        return state.slots_offered, state.policy.slots_to_start
    heard = sum(state.last_heard.get(each.worker.slot.host) is not None for each in state.alive())
    return heard + sum(each.is_done for each in state.workers.values()), state.policy.min_size


def _find_lack(state: State) -> str:
    """Why too few workers have an agent; "" if the hosts do not explain it."""
    if state.slots_offered < state.policy.min_size:
        return f"the hosts offer only {state.slots_offered} of the slots now"
    unheard = unheard_hosts(state)
    if unheard:
        return f"no agent has reported from {', '.join(unheard)}"
    return ""


def log_closings(state: State) -> tuple[State, Effects]:
    """Slots or hosts were closed: for how long no worker is started there, and why. A restart tells its cause first."""
    if state.blacklist is state.logged_blacklist or not (state.restart is None or state.restart.is_told):
        return state, ()
    return replace(state, logged_blacklist=state.blacklist), tuple(_describe_closings(state))


def _describe_closings(state: State) -> Iterator[Log]:
    before, now, recovery = state.logged_blacklist, state.blacklist, state.policy.recovery
    for slot, known in now.slots.items():
        if known != before.slots.get(slot) and known.failures >= recovery.failures_per_slot:
            cooldown = f"{recovery.forgiveness_seconds:g} s (--slot-cooldown)"
            yield Log(f"slot {slot} is closed for {cooldown}: {known.explain_closing()}")
    for host, closing in now.hosts.items():
        if closing != before.hosts.get(host) and closing.until >= state.clock:
            cooldown = f"{round(closing.until - state.clock, 1):g} s (--blacklist-cooldown-range)"
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
    state = replace(state, logged_limit=known)
    if parts:
        return state, (Log(f"{describe_reset_limit(state.resets)}: {', and '.join(parts)}"),)
    return state, ()
