"""Membership: `step(state, event) -> (state, effects)` decides everything about a job's workers.

Theory of operation
-------------------
A job is a set of slots with one desired worker each. The server (server.py) turns each call, report and clock tick into
an event, and performs the effects. Nothing here waits, reads a clock, or does input and output.

`step` has two halves. `facts.py` records the event. Then `settle` applies the rules below: it applies the first rule
that changes something, and starts over, until none does. So what follows from a state does not depend on the event that
has led to it. The time limits (LIMITS) are checked when the clock ticks. Once the outcome is decided, END_RULES replace
RULES.

The phases of a job and the states of a worker are tables in lifecycle.py, drawn in docs/contributing/architecture.md.

- Forming: the workers are started; those that call `init()` wait until all have. Workers that run a plain program never
  join: their job stays in this phase until it ends.
- Reforming: each survivor reports its pending operations, and the recovery decision (decision.py) says what
  all of them do: continue where they are, restore the last commit, or end. If too few are left, they wait for new ones.
- Once a member has exited with 0, no further generation follows: workers that wait, and those that join later, are
  refused. If another worker fails then, the job has failed, but the others are not stopped: they may have finished
  their training.
- Restarting: where a loss would end the job and restarts are left, all workers are stopped, and all are started again:
  see rounds.py. A program that never joins can only begin again so. RESTART_RULES replace RULES meanwhile.
- Draining: the first cause decides the outcome, which never changes; the remaining workers are stopped.

A static job takes the same path. Its placement is fixed and no failure is allowed, so it is never interrupted, and all
its decisions are BEGIN.

Invariants (tests/rendezvous/core/test_laws.py checks them):
- Orders follow from the state and an agent's report: a Launch or Terminate may be lost or repeated.
- An event about an incarnation that was replaced is stale, and changes nothing.
- An event that contradicts the state raises IllegalEventError and changes nothing.
- Generation numbers only grow. Each generation is published once, with as many workers as the policy allows.
- A survivor keeps its place among survivors, and rank 0 has the state that the others copy.
- Each pending operation of each survivor is decided once, and nothing that any rank has committed is revoked.
- From every state the job trains or ends, if agents report and workers join; and it ends, if none of them does.
- So it does if the server is killed, and another one has the state and nothing else (holds.py, test_restarts.py).
"""

from collections.abc import Callable
from dataclasses import replace

from rendezvous.core.facts import limit_notices, record, record_in_draining
from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.losses import (
    limit_shortage,
    limit_start,
    log_closings,
    log_reset_limit,
    lose_late_newcomers,
    lose_late_survivors,
    lose_silent_host,
    lose_unheard_host,
    renew_lease,
)
from rendezvous.core.messages import (
    Begun,
    Declared,
    Effect,
    Effects,
    Event,
    Exited,
    IllegalEventError,
    Joined,
    Level,
    Log,
    Lost,
    Refuse,
    Reported,
    SequencerOpened,
    Ticked,
)
from rendezvous.core.model import Policy
from rendezvous.core.rounds import judge_round, limit_restart, limit_slots, plan_growth, start_round, stop_round
from rendezvous.core.rules import (
    Rule,
    conclude_job,
    conclude_stop,
    end_failed_start,
    end_without_survivors,
    finish,
    forget_silent_hosts,
    interrupt,
    offer_resize,
    publish,
    schedule_first,
    schedule_later,
    stop_all,
)
from rendezvous.core.scheduling import dismiss_idle
from rendezvous.core.state import State
from rendezvous.core.table import Table

LIMITS: tuple[Rule, ...] = (
    lose_silent_host,
    lose_late_survivors,
    limit_shortage,
    limit_start,
    limit_notices,
    lose_unheard_host,
    lose_late_newcomers,
)
RULES: tuple[Rule, ...] = (
    end_failed_start,
    conclude_job,
    end_without_survivors,
    conclude_stop,
    interrupt,
    schedule_first,
    publish,
    schedule_later,
    offer_resize,
    plan_growth,
    log_closings,
    log_reset_limit,
)
RESTART_LIMITS: tuple[Rule, ...] = (lose_silent_host, limit_restart, limit_slots, limit_notices)
RESTART_RULES: tuple[Rule, ...] = (
    stop_round,
    conclude_stop,
    judge_round,
    dismiss_idle,
    start_round,
    log_closings,
)
END_LIMITS: tuple[Rule, ...] = (forget_silent_hosts,)
END_RULES: tuple[Rule, ...] = (stop_all, finish)

LEAST_SLEEP_SECONDS = 1.0  # a tick may be late on a busy machine; a lease shorter than two ticks must run out, too


def begin(policy: Policy) -> State:
    """A job whose hosts are not known yet."""
    return State(policy)


def step(state: State, event: Event) -> tuple[State, Effects]:
    """What follows from one event.

    Raises:
        IllegalEventError: the event contradicts the state, which is unchanged.
    """
    if isinstance(event, Joined | Exited | Declared):
        if (stale := _find_staleness(state, event)) is not None:
            if isinstance(event, Joined):
                return state, (Refuse(event.worker, stale),)
            return state, ()
    elif isinstance(event, Begun | Reported | Lost):
        if event.host not in state.hosts:
            return _ignore_former(state, event, event.host)
        state = _renew_lease(state, event)
    elif isinstance(event, Ticked):
        state = _advance(state, event)

    if state.outcome is None:
        state, effects = record(state, event)
    else:
        state, effects = record_in_draining(state, state.outcome, event)

    if isinstance(event, Begun | Reported | Declared | SequencerOpened) or (
        isinstance(event, Joined) and _awaits_joins(state)
    ):
        return state, effects  # the rules scan all workers, of which there may be thousands: the next tick applies them
    state, more = settle(state, has_ticked=isinstance(event, Ticked))
    return state, _leave_out_cause(state, effects + more)


def _leave_out_cause(state: State, effects: Effects) -> Effects:
    """Leave out the loss of the host that has decided the outcome: Finish explains it."""
    if state.outcome is None or state.outcome.host is None:
        return effects
    host = state.outcome.host
    return tuple(
        each for each in effects if not (isinstance(each, Log) and each.level is Level.WARNING and each.host == host)
    )


def _awaits_joins(state: State) -> bool:
    """Nothing follows from a join before others have joined."""
    is_interrupting = state.interruption is not None and state.phase is not Phase.REFORMING
    return state.outcome is None and state.restart is None and not is_interrupting and state.awaited > 0


def advance(state: State, now: float) -> State:
    """Set the clock forward; if this machine has slept, all time limits are extended by the sleep."""
    gap_seconds = now - state.now  # the rule of hvdrun's SuspensionClock, which this pure package may not import
    slept = gap_seconds > max(state.policy.lease_seconds / 2, LEAST_SLEEP_SECONDS)
    if state.has_ticked and not slept:
        return replace(state, now=now)
    return replace(
        state,
        now=now,
        has_ticked=True,
        last_pause=(now, gap_seconds) if state.has_ticked else None,
        last_heard=Table.of((host, None if heard is None else now) for host, heard in state.last_heard.items()),
        waiting_since=None if state.waiting_since is None else state.waiting_since + gap_seconds,
        deadline=None if state.deadline is None else state.deadline + gap_seconds,
        slept_seconds=state.slept_seconds + gap_seconds,
    )


def _advance(state: State, event: Ticked) -> State:
    if state.has_ticked and event.now < state.now:
        raise IllegalEventError(event, f"the clock already showed {state.now:g}")
    return advance(state, event.now)


def _renew_lease(state: State, event: Begun | Reported | Lost) -> State:
    """An agent has reported: renew its lease. An agent reports its own host's workers only."""
    if isinstance(event, Reported):
        for worker in event.running:
            if worker.slot.host != event.host:
                raise IllegalEventError(event, f"worker {worker} is not on host {event.host}")
    if not isinstance(event, Lost):
        return renew_lease(state, event.host)
    return state


def _ignore_former(state: State, event: Begun | Reported | Lost, host: str) -> tuple[State, Effects]:
    """A dismissed agent may not report; that it starts or is lost changes nothing."""
    is_known = any(slot.host == host for slot in state.workers)
    if not is_known or isinstance(event, Reported):
        raise IllegalEventError(event, f"host {host} is {'no longer' if is_known else 'not'} in use")
    return state, ()


def _find_staleness(state: State, event: Joined | Exited | Declared) -> str | None:
    """Why an event about this worker is stale; None if the worker is the present incarnation and has not ended."""
    worker, record = event.worker, state.workers.get(event.worker.slot)
    match event:
        case Joined(_, number) if number > state.published:
            raise IllegalEventError(event, f"generation {number} has not been published")
        case _ if record is None:
            raise IllegalEventError(event, f"slot {worker.slot} is not in use")
        case _ if worker.incarnation > record.worker.incarnation:
            number = worker.incarnation
            raise IllegalEventError(event, f"incarnation {number} of slot {worker.slot} was never started")
    if worker != record.worker:
        return f"worker {worker} was replaced by incarnation {record.worker.incarnation}"
    if record.state is WorkerState.ENDED:
        return f"worker {worker} has ended"
    return None


def settle(state: State, *, has_ticked: bool = False) -> tuple[State, Effects]:
    """Apply the first rule that changes something, until none does; after a clock tick, the time limits come first.

    A tick after which nothing is due scans the hosts, and not the workers.
    """
    effects: list[Effect] = []
    if has_ticked:
        state, effects = _apply(_list_limits, state)
    if has_ticked and state.outcome is None and state.clock < state.settled_until:
        return state, tuple(effects)
    state, more = _apply(_list_rules, state)
    if state.outcome is None:
        state = replace(state, settled_until=_find_next_time(state))
    return state, (*effects, *more)


def _apply(list_rules: Callable[[State], tuple[Rule, ...]], state: State) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    is_changing = True
    while is_changing:
        is_changing = False
        for rule in list_rules(state):
            changed, more = rule(state)
            if changed is not state or more:
                is_changing, state = True, changed
                effects += more
                break
    return state, effects


def _list_limits(state: State) -> tuple[Rule, ...]:
    if state.outcome is None:
        if state.restart is None:
            return LIMITS
        return RESTART_LIMITS
    if state.phase is Phase.DRAINING:
        return END_LIMITS
    return ()


def _list_rules(state: State) -> tuple[Rule, ...]:
    if state.outcome is not None:
        return END_RULES
    if state.restart is None:
        return RULES
    return RESTART_RULES


def _find_next_time(state: State) -> float:
    """When the rules may have to be applied again though nothing happens, as when closed slots and hosts open."""
    recovery = state.policy.recovery
    times = [known.last + recovery.forgiveness_seconds for known in state.blacklist.slots.values()]
    times += [known.until for known in state.blacklist.hosts.values()]
    times = [time for time in times if time > state.clock - 1]

    if state.restart is not None and state.restart.at is not None and state.restart.at > state.clock:
        times.append(state.restart.at)
    if state.growing_since is not None and state.policy.restarts.grow_after_seconds is not None:
        times.append(state.growing_since + state.policy.restarts.grow_after_seconds)
    if state.gathering_since is not None:
        times.append(state.gathering_since + recovery.gathering_seconds)

    if not state.number and state.waiting_since is not None:
        limit_seconds = min(recovery.gathering_seconds, state.policy.start_timeout_seconds)
        times.append(state.waiting_since - state.slept_seconds + limit_seconds)
    if state.number and state.count(WorkerState.INTENDED):
        since = min(record.since for record in state.list_workers(WorkerState.INTENDED))
        times.append(since + state.policy.start_timeout_seconds)
    return min(times, default=float("inf"))
