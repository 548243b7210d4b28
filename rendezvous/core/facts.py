"""Records an event in the state, losses with the help of `losses.py`. What follows from it is up to `rules.py`."""

from dataclasses import replace

from rendezvous.core.lifecycle import Phase, WorkerRecord, WorkerState
from rendezvous.core.losses import (
    correct_end,
    count_failure,
    log_loss,
    lose_host,
    record_loss,
    start_leases,
    survives,
)
from rendezvous.core.messages import (
    Announce,
    Declared,
    Depart,
    Effects,
    Event,
    Exited,
    HostsChanged,
    IllegalEventError,
    Joined,
    Log,
    Lost,
    Noticed,
    Notify,
    OfferResize,
    Refuse,
    Reported,
    SequencerLost,
    SequencerOpened,
    Signalled,
    Stopped,
    Terminate,
    WorldOpened,
)
from rendezvous.core.model import Worker
from rendezvous.core.outcome import (
    SIGTERM,
    TEMPORARY_FAILURE,
    Blame,
    Cause,
    Outcome,
    blame_host,
    blame_worker,
    describe_loss,
    end_as_noticed,
    find_signal,
    give_up,
    name_signal,
    overrun_notice,
    stop,
    stop_by_signal,
)
from rendezvous.core.reports import JoinReason
from rendezvous.core.scheduling import explain_removal, find_newcomers, reconcile, refuse, retire, stop_workers
from rendezvous.core.state import Offer, Restart, State

_LEAVING = frozenset({WorkerState.LEAVING, WorkerState.ENDED})
_INTERRUPTING = frozenset({JoinReason.CONTINUE, JoinReason.RESTORE, JoinReason.FORM})


def record(state: State, event: Event) -> tuple[State, Effects]:  # noqa: C901, PLR0911, PLR0912 - one case for each kind of event
    """Record an event while the outcome is not decided."""
    match event:
        case HostsChanged():
            return _change_hosts(state, event)
        case Reported():
            return _note_report(state, event), reconcile(state, event)
        case Joined():
            return _join(state, event)
        case Declared(worker, needs_state):
            return _declare(state, worker, needs_state=needs_state), ()
        case SequencerOpened():
            return _announce(state, event)
        case Exited():
            return _exit(state, event)
        case Lost():
            return lose_host(state, event)
        case SequencerLost(host, how):
            return replace(state, sequencer_loss=(host, how)), ()
        case WorldOpened(host):
            return (state if host not in state.hosts else replace(state, has_world=True)), ()
        case Signalled():
            return _signal(state, event)
        case Noticed(host):
            return _notice(state, host)
        case Stopped(code, reason, immediately):
            state = replace(state, outcome=stop(code, reason))
            return stop_workers(state, 0.0) if immediately else (state, ())
        case _:
            return state, ()


def record_in_draining(state: State, outcome: Outcome, event: Event) -> tuple[State, Effects]:
    """Record an event once the outcome is decided: the workers are being stopped, or have ended."""
    match event:
        case Joined(worker):
            is_over = state.phase is Phase.FINISHED
            return state, (Refuse(worker, f"the job is {'over' if is_over else 'ending'}: {outcome.reason}"),)
        case _ if state.phase is Phase.FINISHED:
            return state, ()
        case Exited(worker, returncode):
            former = state.workers[worker.slot]
            is_done = former.is_done or event.has_left
            ended = replace(former, state=WorkerState.ENDED, returncode=returncode, is_done=is_done)
            return _judge_late_end(state.with_records([ended]), former, event, outcome), ()
        case SequencerLost(host, how):
            return replace(state, sequencer_loss=(host, how)), ()
        case Lost(host, reason):
            is_failure = any(each.state is not WorkerState.ENDED for each in state.on(host))
            state = state.with_host_ended(host)
            return (correct_end(state, blame_host(host, reason)) if is_failure else state), ()
        case Reported(_, running):
            left_seconds = (state.deadline or 0.0) - state.policy.lease_seconds - state.now
            grace_seconds = max(0.0, left_seconds)
            return state, tuple(
                Terminate(worker, grace_seconds, outcome.reason, signal=outcome.stop_signal) for worker in running
            )
        case Stopped(immediately=True):
            return stop_workers(state, 0.0)
        case _:
            return state, ()


def _change_hosts(state: State, event: HostsChanged) -> tuple[State, Effects]:
    if not state.policy.outlives_losses and state.workers:
        if event.hosts == state.listed:
            return state, ()  # another server of the job has found them again
        raise IllegalEventError(event, "the placement of this job is fixed")
    state = state.with_offer(event.hosts)
    if state.is_one_world and state.workers:
        return _follow_offer(state), ()
    if state.policy.max_size > 1:
        return state, ()
    listed = {host.name for host in event.hosts}
    staying = [each.worker.slot.host for each in state.survivors() if each.worker.slot.host not in listed]
    why = "with --max-np 1 no other worker can copy its state"
    return state, tuple(Log(f"the worker on the host {host} stays there until it ends: {why}") for host in staying)


def _follow_offer(state: State) -> State:
    """Leave slots that are no longer offered, where the others are enough for all workers."""
    gone = [each.worker.slot for each in state.alive() if not state.offers(each.worker.slot)]
    is_planned = state.may_restart and state.stops_at is None
    if not gone or not is_planned or state.slots_offered < state.policy.min_size:
        return state
    slot = min(gone, key=lambda each: each.host in state.slots)  # first one of a host that has no slots left
    return _plan_restart(state, None if slot.host in state.slots else slot.host, explain_removal(state, slot))


def _plan_restart(state: State, host: str | None, reason: str) -> State:
    """Plan to start all workers again, unless they are stopped already; host: the one that they leave as a whole."""
    outcome = Outcome(TEMPORARY_FAILURE, Cause.STOPPED, reason, host=host)
    return replace(state, restart=state.restart or Restart(outcome, is_planned=True, since=state.clock))


def _note_report(state: State, event: Reported) -> State:
    """Note from a report that the round has begun on a host, and which workers that it should stop have ended."""
    if gone := _find_gone(state, event):
        state = state.with_records(gone)
    is_heard = event.host in state.unreported and any(
        (known := state.workers.get(each.slot)) is not None and known.worker == each for each in event.running
    )
    if is_heard:
        return _hear(state, event.host)
    return state


def _find_gone(state: State, event: Reported) -> list[WorkerRecord]:
    """The workers whose time to end is over, and which their agent does not have.

    The order to start such a worker may have been lost with a server that was killed.
    """
    lease_seconds, running = state.policy.lease_seconds, frozenset(event.running)
    return [
        replace(each, state=WorkerState.ENDED, returncode=-SIGTERM)
        for each in state.on(event.host)
        if each.state is WorkerState.LEAVING
        and each.worker not in running
        and state.clock > each.leaves_by + lease_seconds
    ]


def _hear(state: State, host: str) -> State:
    """Note that a host has reported a worker of this round."""
    return replace(state, unreported=state.unreported - {host}, unanswered=state.unanswered - {host})


def _announce(state: State, event: SequencerOpened) -> tuple[State, Effects]:
    generation = state.generation
    if state.phase is not Phase.RUNNING or generation is None or event.generation != generation.number:
        return state, ()
    if event.host != generation.members[0].slot.host:
        raise IllegalEventError(event, f"rank 0 ({generation.members[0]}) is on another host")
    return replace(state, sequencer=event.endpoint), (Announce(event.generation, event.endpoint),)


def _declare(state: State, worker: Worker, *, needs_state: bool) -> State:
    known = state.workers[worker.slot]
    if known.state is WorkerState.WAITING and state.number:
        return state  # the call is late: the worker's report is newer
    return state.with_records([replace(known, has_state=True, needs_state=needs_state)])


def _join(state: State, event: Joined) -> tuple[State, Effects]:
    """A worker asks to be in the next generation.

    Before the first generation, after `shutdown()` and `init()`, and at a resize, a member waits for all others. A
    member that cannot continue interrupts them. A new worker waits for the next resize. A member of a static job can
    begin again, and nothing else: any other wish ends the job.
    """
    known, report = state.workers[event.worker.slot], event.report
    if known.state is WorkerState.LEAVING:
        return state, (Refuse(known.worker, known.reason, leaves=True),)
    if state.is_member(known) and event.after < state.number:
        return state, ()  # a repeated call; the newest generation has answered it
    if state.refusal is not None:
        return refuse(state, [known], state.refusal)
    if not state.is_member(known):
        state = start_leases(state, (known.worker.slot.host,))
        return state.with_records([replace(known, state=WorkerState.READY, has_state=report.has_state)]), ()

    interrupts = state.number > 0 and report.reason in _INTERRUPTING
    if state.number > 0 and report.reason is not JoinReason.BEGIN and not state.policy.is_elastic:
        why = report.error or ("it was interrupted" if interrupts else "no resize was offered to it")
        reason = f"rank {known.assignment.rank} cannot continue: {why}"
        return state.with_end(give_up(reason, state.first_failure)), ()

    state = state.with_records([known.wait(report)])
    if state.phase is Phase.RUNNING:
        state = state.enter(Phase.FORMING)
    if not interrupts:
        return state, ()
    return state.with_interruption(report.error or f"rank {known.assignment.rank} cannot continue"), ()


def _exit(state: State, event: Exited) -> tuple[State, Effects]:
    """A worker has exited: it was stopped, has succeeded, or has failed."""
    former = state.workers[event.worker.slot]
    is_leaving = former.state is WorkerState.LEAVING
    is_noticed = state.is_killed_by_notice(event.worker, event.returncode)
    ended = replace(
        former,
        state=WorkerState.ENDED,
        returncode=event.returncode,
        report=None,
        is_done=not is_leaving and state.ends_well(event.returncode),
    )
    state = state.with_records([ended])
    state = _hear(state, former.worker.slot.host)

    if is_leaving:
        return _judge_stopped(state, former, event), ()
    if ended.is_done and not state.is_member(former):
        name = f"the worker {former.worker}, which was started while the others trained,"
        return state, (Log(f"{name} exited before it had joined them: it is not started again"),)
    if ended.is_done:
        return _end_well(state, event.worker)
    if is_noticed:
        return _record_notice_of(state, former.worker.slot.host)

    state = start_leases(replace(state, failures=state.failures + 1), (former.worker.slot.host,))
    outcome = _make_outcome(former, event)
    if state.is_one_world:
        if _are_others_done(state, former):
            return replace(state, outcome=outcome), ()
        return state.with_end(outcome), ()

    state, logs = _log_failure(state, event, outcome)
    if survives(state) and former.worker.slot.host not in state.drained:
        state = count_failure(state, former, "its command cannot be started" if event.cannot_start else "")
    return record_loss(state, [former], outcome), logs


def _judge_stopped(state: State, former: WorkerRecord, event: Exited) -> State:
    """A worker that is stopped has ended: where it did so by itself, it may be the cause of the restart."""
    if state.restart is None or event.was_stopped or event.has_left or not event.returncode:
        return state
    return state.with_surer_cause(_make_outcome(former, event))


def _judge_late_end(state: State, former: WorkerRecord, event: Exited, outcome: Outcome) -> State:
    """A worker has ended after the outcome was decided: it may be the cause, or have failed because of it."""
    ended_itself = not (event.was_stopped or event.has_left) and not state.ends_well(event.returncode)
    blame = _find_blame(former, event)
    if not ended_itself and blame is None:
        return state
    if ended_itself:
        state = correct_end(state, _make_outcome(former, event))
    if state.outcome is outcome:
        has_failed = blame is not None or find_signal(event.returncode) is None
        return state.with_follower(former.assignment.rank, blame) if has_failed else state
    return state if outcome.rank is None else state.with_follower(outcome.rank, outcome.blame)


def _make_outcome(former: WorkerRecord, event: Exited) -> Outcome:
    """This worker's failure as the outcome."""
    rank = former.assignment.rank
    outcome = blame_worker(event.worker, rank, event.returncode, event.error, cannot_start=event.cannot_start)
    return replace(outcome, message=event.message, blame=_find_blame(former, event), evidence=event.evidence)


def _find_blame(former: WorkerRecord, event: Exited) -> Blame | None:
    """Which other part of the job made this worker fail; a worker that blames itself failed by itself."""
    if event.blame is not None and event.blame.ranks == (former.assignment.rank,):
        return None
    return event.blame


def _are_others_done(state: State, former: WorkerRecord) -> bool:
    """All others of the round have exited with 0: a failure in what is left of this one, as in exit hooks, is final."""
    others = [
        each
        for each in state.workers.values()
        if each.since >= state.round_since and each.worker.slot != former.worker.slot
    ]
    return bool(others) and all(each.is_done for each in others)


def _log_failure(state: State, event: Exited, outcome: Outcome) -> tuple[State, Effects]:
    """Log a failure; a command that cannot be started is logged once, since the workers share it."""
    if not state.policy.is_elastic or (event.cannot_start and event.error in state.start_errors):
        return state, ()
    sentence = describe_loss(event.worker, state.find_rank(event.worker), event.returncode, event.error)
    if event.cannot_start and event.error is not None:
        state = replace(state, start_errors=state.start_errors | {event.error})
    state, log = log_loss(state, replace(outcome, reason=sentence))
    return state, (log,)


def _end_well(state: State, worker: Worker) -> tuple[State, Effects]:
    """A member has exited with 0: it is not replaced, and no further generation can have all workers."""
    if state.ended == len(state.workers):
        return state, ()
    generation, rank = state.generation, state.find_rank(worker)
    departure: Effects = ()
    if generation is not None and generation.members[rank] == worker:
        departure = (Depart(generation.number, worker, rank),)

    refusal = state.refusal or _explain_refusal(state, worker)
    state = replace(state, refusal=refusal)
    state, refusals = refuse(state, state.list_workers(WorkerState.WAITING) if state.waiting else (), refusal)
    newcomers = find_newcomers(state) if state.number else ()
    state, retired = retire(state, newcomers, f"workers are no longer added: {worker} has exited with 0")

    if state.phase is Phase.REFORMING:
        state = replace(state, deadline=None, short_since=None)  # no generation follows
    return state, departure + refusals + retired


def _explain_refusal(state: State, gone: Worker) -> str:
    """Why no generation follows. The members of an elastic job join again without a call of `init()`."""
    name = f"rank {state.find_rank(gone)} ({gone})"
    if state.policy.is_elastic and state.number:
        left = f"{name} has left (exit code {state.workers[gone.slot].returncode}), and is not replaced"
        if state.first_failure is not None:
            return f"{state.first_failure.reason}; {left}"
        return left
    return f"{name} has exited and will not join; every worker must call hvd.init() as often as the others"


def _notice(state: State, host: str | None) -> tuple[State, Effects]:
    """A stop notice has come: an elastic job drains the host, if other members are left; else the whole job stops."""
    if state.stops_at is not None or (host is not None and (host in state.drained or host not in state.hosts)):
        return state, ()
    if host is None:
        return _stop(state, "a stop notice came (SIGUSR2)")
    if not state.policy.outlives_losses or (state.is_one_world and not state.may_restart):
        return _stop(state, f"a stop notice came to host {host}")
    if state.is_one_world:
        others = _drain_host(state, host)
        if not others.slots:
            return _stop(state, f"a stop notice came to host {host}, and there is no other")
        return _leave_round(others, host, f"host {host} got a stop notice")
    drained = _drain(state, host)
    if drained is None:
        return _stop(state, f"a stop notice came to host {host}, and without it no worker is left")
    return drained, (Notify(host, f"host {host} got a stop notice: the job continues without it"),)


def _drain_host(state: State, host: str) -> State:
    """The state in which this host has a stop notice."""
    policy = state.policy
    grace_seconds = policy.restarts.planned_grace_seconds if state.is_one_world else policy.grace_seconds
    return state.with_drained({**state.drained, host: state.clock + grace_seconds})


def _leave_round(state: State, host: str, reason: str, *, is_broken: bool = False) -> tuple[State, Effects]:
    """Start all workers again without this host, if it has any; is_broken: the notice has killed one of them.

    The restart says why, unless another one is planned already.
    """
    has_workers = is_broken or any(each.state not in _LEAVING for each in state.on(host))
    if has_workers and state.restart is None:
        return _plan_restart(state, host, reason), ()
    return state, (Notify(host, f"{reason}: the job continues without it"),)


def _drain(state: State, host: str) -> State | None:
    """The state in which this host is to be left; None if no worker would be."""
    drained = _drain_host(state, host)
    if state.number:
        is_left = any(each.worker.slot.host not in drained.drained for each in drained.survivors())
    else:
        is_left = bool(drained.slots)
    return drained if is_left else None


def _signal(state: State, event: Signalled) -> tuple[State, Effects]:
    """A signal ends an agent: an elastic job leaves the host at once, if other members are left; else the job stops.

    The agent has asked its workers to end.
    """
    host = event.host
    if host not in state.hosts:
        return state, ()

    reason = f"the agent on host {host} received {name_signal(event.signal)}"
    is_world = state.is_one_world
    if is_world and state.may_restart and state.stops_at is None:
        others = _drain_host(state, host)
        if others.slots:
            if host in state.drained:
                return state, ()
            return _leave_round(others, host, reason)

    staying = [each for each in state.on(host) if each.state not in _LEAVING]
    if host in state.drained and not staying:
        return state, ()  # an agent repeats its report
    may_drain = state.policy.is_elastic and state.stops_at is None and (state.may_restart or not is_world)
    drained = _drain(state, host) if may_drain else None
    if drained is None:
        return replace(state, outcome=stop_by_signal(event.signal, host, reason)), ()

    drained, effects = _leave(drained, staying, reason)
    return drained, (Notify(host, f"{reason}: the job continues without it"), *effects)


def _record_notice_of(state: State, host: str) -> tuple[State, Effects]:
    """A stop notice has killed a worker that had not joined, and so could not pass it on: the notice is for its host.

    If the job does not train yet, and cannot start without that worker, there is nothing to save: it ends.
    """
    is_world = state.is_one_world
    if is_world and state.may_restart and state.stops_at is None:
        left = _drain_host(state, host)
        if left.slots:
            return _leave_round(left, host, f"host {host} got a stop notice", is_broken=True)
    others = any(other != host for other in state.slots)
    may_begin = state.policy.is_elastic and others and not is_world and state.stops_at is None and not state.refusal
    if state.number or may_begin:
        return _notice(state, host)
    return replace(state, outcome=end_as_noticed()), ()


def _stop(state: State, why: str) -> tuple[State, Effects]:
    """The whole job has to stop. No worker is added or removed until then."""
    if not state.alive():
        return replace(state, outcome=end_as_noticed()), ()
    grace_seconds = state.policy.grace_seconds
    if hears_notices(state):
        sentence = f"{why}: the workers have {grace_seconds:g} s (--grace) to save what they need and to end"
    else:
        sentence = f"{why}: it reaches no worker before hvd.init(), and all get SIGTERM in {grace_seconds:g} s"
    effects: Effects = (Notify(None, sentence),)
    if not state.offer.is_empty and state.phase is Phase.RUNNING:
        number = state.offer.number + 1
        state = replace(state, offer=Offer(number))
        effects += (OfferResize(state.number, number, adds=False, removes=False),)
    return replace(state, stops_at=state.clock + grace_seconds), effects


def hears_notices(state: State) -> bool:
    """Workers have called `init()`, by which they learn of a stop notice; those of a plain program never do."""
    return bool(state.number or state.waiting)


def limit_notices(state: State) -> tuple[State, Effects]:
    """Stop workers whose notice has run out; offer a host again some time after its notice."""
    if state.stops_at is not None:
        if state.clock > state.stops_at and (alive := state.alive()):
            return _overrun(state, alive[0].worker), ()
        return state, ()

    for host, leaves_by in state.drained.items():
        if state.clock > leaves_by and host in state.hosts:
            if late := [each for each in state.on(host) if each.state not in _LEAVING]:
                reason = f"host {host} got a stop notice {state.policy.grace_seconds:g} s ago (--grace)"
                return _leave(state, late, reason)
        elif state.clock > leaves_by + state.policy.recovery.cooldown_seconds[0]:
            return state.with_drained({other: when for other, when in state.drained.items() if other != host}), ()
    return state, ()


def _overrun(state: State, late: Worker) -> State:
    remedy = "a script without hvd does not see a notice: send hvdrun SIGTERM instead, which its workers get at once"
    if hears_notices(state):
        remedy = "give it longer, or have it save with --checkpoint and hvd.elastic.run, or when hvd.stopping() says so"
    outcome = overrun_notice(late, state.find_rank(late), state.policy.grace_seconds, remedy)
    return replace(state, outcome=outcome)


def _leave(state: State, records: list[WorkerRecord], reason: str) -> tuple[State, Effects]:
    """Stop workers that are still on a host that has to be left; the others repeat the step without them."""
    members = {record.worker for record in state.survivors()}
    state, effects = retire(state, records, reason)
    if members.isdisjoint(record.worker for record in records):
        return state, effects
    if not state.survivors():
        return _overrun(state, records[0].worker), effects
    return state.with_interruption(reason), effects
