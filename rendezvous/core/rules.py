"""The rules: what follows from a state, whichever events have led to it.

Each rule takes the state, and returns it changed, with effects, or unchanged. `settle` applies the first rule that
changes something, and starts over, until none does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from rendezvous.core.decision import STATE_LOST, AwaitWorkers, End, Situation, decide
from rendezvous.core.explanation import explain_end
from rendezvous.core.lifecycle import Phase, WorkerRecord, WorkerState
from rendezvous.core.losses import (
    correct_end,
    give_up_workers,
    settle_suspicions,
    silent_hosts,
    start_is_overdue,
    start_leases,
)
from rendezvous.core.messages import Effects, Interrupt, Log, OfferResize, Publish
from rendezvous.core.model import Generation, Worker, rank
from rendezvous.core.outcome import (
    blame_host,
    conclude,
    describe_silence,
    exhaust_resets,
    fail_again,
    fail_to_be_added,
    give_up,
    lose_state,
)
from rendezvous.core.reports import Action, JoinReason, RecoveryDecision, Report
from rendezvous.core.scheduling import (
    Composition,
    arrange,
    compose,
    explain_removal,
    is_never_replaced,
    retire,
    schedule,
    stop_workers,
)
from rendezvous.core.state import Offer, State

Rule: TypeAlias = Callable[[State], tuple[State, Effects]]

_NO_REPLACEMENT = "no new worker will come: the script has no hvd.elastic.run"
_ADDING = frozenset({Action.RESIZE, Action.RESTORE})  # new workers copy the others' state
_PLANNED = frozenset({Action.BEGIN, Action.RESIZE})  # by the program, or at its commit


def conclude_job(state: State) -> tuple[State, Effects]:
    """All workers have ended, some with exit code 0: the job succeeds, unless it has not recovered from a failure."""
    is_over = state.workers and state.ended == len(state.workers)
    if not is_over or not any(each.is_done and state.is_member(each) for each in state.workers.values()):
        return state, ()
    first = None
    if state.number:
        first = state.first_failure
    return replace(state, outcome=conclude(first, has_stopped=state.has_stopped)), ()


def conclude_stop(state: State) -> tuple[State, Effects]:
    """All workers have ended after a stop notice for the job, though none as the notice asks."""
    is_over = state.stops_at is not None and state.ended == len(state.workers)
    if is_over:
        return replace(state, outcome=conclude(state.first_failure, has_stopped=True)), ()
    return state, ()


def end_without_survivors(state: State) -> tuple[State, Effects]:
    """No member is left, so the state of the training is lost.

    The first failure of the generation decides the outcome. New workers, if there are any, do not have the state.
    """
    failure, generation = state.first_failure, state.generation
    if failure is None or generation is None or state.refusal is not None:
        return state, ()
    if state.count(WorkerState.MEMBER) or state.waiting:
        return state, ()
    slots = {worker.slot for worker in generation.members}
    is_left = any(record.worker.slot not in slots for record in state.alive())
    return state.with_end(lose_state(f"{failure.reason}; {STATE_LOST}", failure) if is_left else failure), ()


def end_failed_start(state: State) -> tuple[State, Effects]:
    """Before the first generation: failures have closed so many slots that too few workers run or have exited with 0.

    If too few slots are offered at all, the job waits for hosts.
    """
    if state.number or state.first_failure is None or state.policy.min_size > state.slots_offered:
        return state, ()
    scheduled, _ = schedule(state)
    workers = len(scheduled.alive()) + sum(each.is_done for each in state.workers.values())
    if workers >= state.policy.min_size:
        return state, ()
    return state.with_end(state.first_failure), ()


def interrupt(state: State) -> tuple[State, Effects]:
    """Interrupt a generation that cannot continue: its members report by a deadline, if another one follows."""
    if state.interruption is None or state.phase is Phase.REFORMING:
        return state, ()
    deadline = None
    if state.refusal is None:
        deadline = state.now + state.policy.report_seconds
    state = replace(state.enter(Phase.REFORMING), deadline=deadline)
    return state, (Interrupt(state.number, state.interruption or ""),)


def schedule_first(state: State) -> tuple[State, Effects]:
    """Before the first generation workers are scheduled before `publish`, which waits for them."""
    if state.number:
        return state, ()
    return schedule(state)


def schedule_later(state: State) -> tuple[State, Effects]:
    """Later `publish` comes first: it does not wait for new workers."""
    if state.number:
        return schedule(state)
    return state, ()


def offer_resize(state: State) -> tuple[State, Effects]:
    """Offer the members a resize that would add or remove workers, if it differs from the last offer.

    It is offered when no new worker is starting, or the first has waited for some seconds. An offer is withdrawn when
    it would change nothing.
    """
    generation = state.generation
    if generation is None or state.phase is not Phase.RUNNING or not state.policy.is_elastic:
        return state, ()
    if state.refusal is not None or state.stops_at is not None or not state.may_reset:
        return state, ()
    survivors = state.survivors()
    if not all(record.has_state for record in survivors):
        return state, ()

    composition = compose(state, Action.RESIZE, survivors)
    added = tuple(record.worker for record in composition.added)
    removed = tuple(record.worker for record in composition.removed)
    offer = Offer(state.offer.number + 1, added, removed)
    if (added, removed) == (state.offer.added, state.offer.removed):
        if offer.is_empty and state.gathering_since is not None:
            return replace(state, gathering_since=None), ()
        return state, ()

    if not offer.is_empty:
        since = state.clock if state.gathering_since is None else state.gathering_since
        if state.gathering_since is None:
            state = replace(state, gathering_since=since)
        if state.awaited and state.clock - since < state.policy.recovery.gathering_seconds:
            return state, ()

    effect = OfferResize(generation.number, offer.number, bool(added), bool(removed))
    return replace(state, offer=offer, gathering_since=None if offer.is_empty else state.gathering_since), (effect,)


def stop_all(state: State) -> tuple[State, Effects]:
    """The outcome is decided: stop the remaining workers."""
    if state.phase in {Phase.DRAINING, Phase.FINISHED}:
        return state, ()
    return stop_workers(state, state.policy.grace_seconds)


def finish(state: State) -> tuple[State, Effects]:
    """All workers have ended, or have not by the deadline: the job is over."""
    if state.outcome is None or state.phase is not Phase.DRAINING:
        return state, ()
    is_overdue = state.deadline is not None and state.now > state.deadline
    if state.ended < len(state.workers) and not is_overdue:
        return state, ()
    return replace(state.enter(Phase.FINISHED), deadline=None), (explain_end(state, state.outcome),)


def forget_silent_hosts(state: State) -> tuple[State, Effects]:
    """While the job ends, an agent's lease has run out: its workers have ended, too."""
    silent = silent_hosts(state) if state.phase is Phase.DRAINING else ()
    if not silent:
        return state, ()
    state = state.with_host_ended(silent[0])
    if state.outcome is None or state.outcome.blame is None:
        return state, ()
    return correct_end(state, blame_host(silent[0], describe_silence(state.policy.lease_seconds))), ()


def publish(state: State) -> tuple[State, Effects]:
    """Reach the decision and publish the next generation, if all awaited workers have joined."""
    if state.phase not in {Phase.FORMING, Phase.REFORMING} or not state.waiting or state.refusal is not None:
        return state, ()
    if state.number:
        if state.awaited:
            return state, ()
        judged, effects = _judge(state)
        return state if judged == state else judged, effects  # the same object: then nothing has changed
    if _may_start(state):
        return _publish_first(state)
    return state, ()


def _may_start(state: State) -> bool:
    """The first generation can be published.

    Once as many workers as the job starts with have joined, it does not wait long for workers whose agent has not
    reported, and which may never join. They are added later.
    """
    policy, since = state.policy, state.waiting_since
    if since is None or state.waiting < policy.min_size:
        return False
    if policy.is_elastic and start_is_overdue(state, since):
        return True
    if not state.awaited or not policy.is_elastic or state.waiting < policy.slots_to_start:
        return not state.awaited
    has_waited = state.now - since > policy.recovery.gathering_seconds
    missing = state.list_workers(WorkerState.INTENDED)
    return has_waited and all(state.last_heard[each.worker.slot.host] is None for each in missing)


def _publish_first(state: State) -> tuple[State, Effects]:
    """Publish the workers that have joined as the first generation."""
    members = arrange((), state.list_workers(WorkerState.WAITING), state.slots)
    started = len(members) + state.count(WorkerState.INTENDED)
    if len(members) == started:
        reason = _describe_all(started)
    else:
        reason = f"{len(members)} of {started} workers have joined"
    return _publish(state, RecoveryDecision(Action.BEGIN), Composition(members), reason)


def _judge(state: State) -> tuple[State, Effects]:
    """Decide, once all survivors of the newest generation have reported."""
    generation = state.generation
    if generation is None:
        raise ValueError("there is no generation to recover")

    survivors = state.survivors()
    ranks = {worker: rank for rank, worker in enumerate(generation.members)}
    reports = {ranks[record.worker]: _complete(record) for record in survivors}
    state = settle_suspicions(state, has_progressed=state.crash_loop.shows_progress(reports.values()))
    survivors = state.survivors()
    crash_loop = state.crash_loop.count(generation.members, tuple(reports.values()))
    if (reason_to_end := crash_loop.reason_to_end) is not None:
        return _drop_newcomers(state, survivors, reason_to_end)

    newcomers = sum(state.offers(record.worker.slot) for record in state.list_workers(WorkerState.READY))
    interruption = _find_interruption(state, reports.values())
    had_state = frozenset(ranks[record.worker] for record in survivors if record.had_state)
    size = len(generation.members)
    situation = Situation(size, reports, state.least_size, newcomers, state.decision, interruption, had_state)

    match decide(situation):
        case End(reason, is_state_lost=True):
            return state.with_end(lose_state(reason, state.first_failure)), ()
        case End(reason):
            return state.with_end(give_up(reason, state.first_failure)), ()
        case AwaitWorkers(reason) if not state.may_reset:
            return replace(state, outcome=exhaust_resets(state.resets, reason, state.first_failure)), ()
        case AwaitWorkers():
            since = state.clock if state.short_since is None else state.short_since
            return replace(state.enter(Phase.REFORMING), deadline=None, short_since=since), ()
        case RecoveryDecision() as decision:
            return _publish_next(replace(state, crash_loop=crash_loop), decision, survivors, ranks)


def _drop_newcomers(state: State, survivors: tuple[WorkerRecord, ...], reason: str) -> tuple[State, Effects]:
    """Kill the new ones among members that make no progress: without them the others may. Else the job ends."""
    newcomers = [record for record in survivors if record.needs_state]
    if not 0 < len(newcomers) < len(survivors):
        is_own = any(
            record.report and record.report.reason is JoinReason.RESTORE and record.report.error for record in survivors
        )
        if is_own:
            return replace(state, outcome=fail_again(reason, state.first_failure)), ()
        return replace(state, outcome=give_up(reason, state.first_failure)), ()
    state, effects, outcome = give_up_workers(
        state, newcomers, lambda worker, rank: fail_to_be_added(worker, rank, reason), "its worker cannot be added"
    )
    if not state.policy.allows(state.failures):
        return replace(state, outcome=outcome), effects
    return state, effects


def _complete(record: WorkerRecord) -> Report:
    """A survivor's report, with what only the rendezvous knows."""
    report = record.report or Report()
    return replace(report, needs_state=record.needs_state)


def _find_interruption(state: State, reports: Iterable[Report]) -> str:
    """What has interrupted the generation, in one sentence; "" if nothing has."""
    if state.first_failure is not None:
        return state.first_failure.reason
    return next((report.error for report in reports if report.error and report.reason is JoinReason.CONTINUE), "")


def _publish_next(
    state: State, decision: RecoveryDecision, survivors: tuple[WorkerRecord, ...], ranks: Mapping[Worker, int]
) -> tuple[State, Effects]:
    composition = compose(state, decision.action, survivors)
    if decision.action is Action.RETRY:
        decision = replace(decision, survivors=tuple(ranks[record.worker] for record in composition.members))
    if any(record.report is not None and record.report.reason is not JoinReason.BEGIN for record in survivors):
        if not state.may_reset:
            return replace(state, outcome=exhaust_resets(state.resets, decision.reason, state.first_failure)), ()
        state = replace(state, resets=state.resets + 1)
    reason = decision.reason or _describe_all(len(composition.members))
    logs = _describe_next_generation(state, decision, composition.members)
    if not state.logged_alone and is_never_replaced(state, decision):
        state, logs = replace(state, logged_alone=True), (*logs, Log(_NO_REPLACEMENT))
    state, effects = _publish(state, decision, composition, reason)
    return state, effects + logs


def _describe_all(workers: int) -> str:
    if workers == 1:
        return "the only worker has joined"
    return f"all {workers} workers have joined"


def _publish(state: State, decision: RecoveryDecision, composition: Composition, reason: str) -> tuple[State, Effects]:
    number = state.published + 1
    members = composition.members
    assignments = rank([record.worker.slot for record in members])
    added = {record.worker for record in composition.added}
    records = tuple(
        replace(
            record,
            state=WorkerState.MEMBER,
            assignment=assignment,
            generation=number,
            report=None,
            needs_state=decision.action in _ADDING and (record.needs_state or record.worker in added),
        )
        for record, assignment in zip(members, assignments, strict=True)
    )

    generation = Generation(number, tuple(record.worker for record in records))
    former = state
    state = start_leases(state.with_records(records), {worker.slot.host for worker in generation.members})
    state = replace(
        state.enter(Phase.RUNNING),
        generation=generation,
        published=number,
        decision=decision,
        sequencer=None,
        first_failure=None,
        deadline=None,
        short_since=None,
        gathering_since=None,
        interruption=None,
        offer=Offer(state.offer.number),
    )

    effects: Effects = (Publish(generation, assignments, reason, decision),)
    for record in composition.removed:
        state, more = retire(state, [record], explain_removal(former, record.worker.slot))
        effects += more
    return state, effects


def _describe_next_generation(
    state: State, decision: RecoveryDecision, next_members: Sequence[WorkerRecord]
) -> tuple[Log, ...]:
    """With how many workers the job continues, and why it was interrupted where no worker was lost.

    Where all members call `init()` again, or begin again at a commit, and are the same as before, nothing is logged.
    """
    if state.generation is None or not state.policy.is_elastic:
        return ()
    former, members = set(state.generation.members), {record.worker for record in next_members}
    errors = [each.report.error for each in state.survivors() if each.report is not None and each.report.error]
    logs = []
    if errors and former <= members:
        reason = errors[0]
        if decision.action is Action.RESTORE:
            reason = decision.reason
        # The sentence may have the program's own words, over several lines.
        logs.append(Log(" ".join(reason.split()).rstrip(".")))
    if errors or former != members or decision.action not in _PLANNED:
        count = len(members)
        logs.append(Log(f"the job continues with {count} worker{'' if count == 1 else 's'}"))
    return tuple(logs)
