"""Publication: when everybody has joined who can, the verdict is passed and the next generation published."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from rendezvous.core import draining
from rendezvous.core.abandonment import abandon, settle_suspicions
from rendezvous.core.effects import Effect, Publish
from rendezvous.core.growth import offer_resize
from rendezvous.core.model import Generation, Worker, rank
from rendezvous.core.outcome import exhaust_resets, fail_again, fail_to_be_taken_in, give_up, lose_state
from rendezvous.core.reports import Decision, Report, Verdict, Wish
from rendezvous.core.scheduling import Composition, arrange, compose, explain_removal, retire, staff
from rendezvous.core.state import Offer, Phase, State
from rendezvous.core.timeouts import start_leases
from rendezvous.core.verdict import End, Situation, Wait, decide
from rendezvous.core.workers import Standing, WorkerRecord

Step: TypeAlias = Callable[[State], tuple[State, tuple[Effect, ...]]]

_TAKEN_IN = frozenset({Decision.RESIZE, Decision.RESTORE})  # whoever is new has yet to copy the others' state


def chain(state: State, *steps: Step) -> tuple[State, tuple[Effect, ...]]:
    """One step after the other, until the job's end is decided."""
    effects: list[Effect] = []
    for step in steps:
        if state.outcome is not None:
            break
        state, more = step(state)
        effects += more
    return state, tuple(effects)


def move_on(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Do what has become possible: form the next generation, start workers, offer a resize.

    Before the first generation a slot that is free is staffed first, and waited for; later nobody waits for newcomers.
    """
    steps = (publish_when_complete, staff) if state.number else (staff, publish_when_complete)
    return chain(state, *steps, offer_resize, _note_settled)


def _note_settled(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Save thousands of workers a look at each of them with every tick."""
    is_settled = (
        state.phase is Phase.RUNNING
        and state.count(Standing.MEMBER) == len(state.workers)
        and state.slots_offered == len(state.workers)
        and all(map(state.offers, state.workers))
    )
    return (replace(state, is_settled=True) if is_settled else state), ()


def publish_when_complete(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Pass the verdict and publish the next generation, if nobody is missing."""
    if state.phase not in {Phase.FORMING, Phase.REFORMING} or not state.waiting or state.refusal is not None:
        return state, ()
    if state.number:
        return (state, ()) if state.count(Standing.MEMBER) else _judge(state)
    return publish_first(state) if _may_start(state) else (state, ())


def _may_start(state: State) -> bool:
    """Nobody is missing whom the first generation waits for.

    With as many as the job starts with, it does not wait long for hosts of which nothing has been heard, which may
    never come. Their workers are taken in later.
    """
    policy, since = state.policy, state.waiting_since
    if since is None or state.waiting < policy.min_size:
        return False
    missing = state.standing(Standing.INTENDED)
    if not missing or not policy.is_elastic or state.waiting < policy.slots_to_start:
        return not missing
    has_waited = state.now - since > policy.recovery.gathering_seconds
    return has_waited and all(state.last_heard[each.worker.slot.host] is None for each in missing)


def publish_first(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Those who have joined are the first generation."""
    hosts = [host.name for host in state.offered]
    members = arrange((), state.standing(Standing.WAITING), hosts)
    started = len(members) + state.count(Standing.INTENDED)
    reason = _describe_all(started) if len(members) == started else f"{len(members)} of {started} workers have joined"
    return _publish(state, Verdict(Decision.BEGIN), Composition(members), reason)


def _judge(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Every survivor of the newest generation has reported."""
    generation = state.generation
    if generation is None:
        raise ValueError("there is no generation to survive")
    survivors = state.survivors()
    ranks = {worker: rank for rank, worker in enumerate(generation.members)}
    reports = {ranks[record.worker]: _complete(record) for record in survivors}
    state = settle_suspicions(state, has_committed=state.repetition.shows_progress(reports.values()))
    survivors = state.survivors()
    repetition = state.repetition.note(generation.members, tuple(reports.values()))
    if (hopelessness := repetition.hopelessness) is not None:
        return _go_on_without_newcomers(state, survivors, hopelessness)
    newcomers = sum(state.offers(record.worker.slot) for record in state.standing(Standing.READY))
    cause = _explain(state, reports.values())
    minimum = state.policy.min_size
    past_state = frozenset(ranks[record.worker] for record in survivors if record.is_past_state)
    situation = Situation(len(generation.members), reports, minimum, newcomers, state.verdict, cause, past_state)
    match decide(situation):
        case End(reason, is_state_lost):
            return draining.enter(state, (lose_state if is_state_lost else give_up)(reason, state.cause))
        case Wait(reason) if not state.may_form_anew:
            return draining.enter(state, exhaust_resets(state.resets, reason, state.cause))
        case Wait():
            since = state.clock if state.short_since is None else state.short_since
            return replace(state, phase=Phase.REFORMING, deadline=None, short_since=since), ()
        case Verdict() as verdict:
            return _publish_next(replace(state, repetition=repetition), verdict, survivors, ranks)


def _go_on_without_newcomers(
    state: State, survivors: tuple[WorkerRecord, ...], reason: str
) -> tuple[State, tuple[Effect, ...]]:
    """These members get no further together; those who were before some of them came may, without them."""
    newcomers = [record for record in survivors if record.is_blank]
    if not 0 < len(newcomers) < len(survivors):
        is_own = any(
            record.report and record.report.wish is Wish.RESTORE and record.report.trouble for record in survivors
        )
        return draining.enter(state, (fail_again if is_own else give_up)(reason, state.cause))
    weight = state.policy.recovery.failures_per_slot
    state, effects, outcome = abandon(
        state, newcomers, lambda worker, rank: fail_to_be_taken_in(worker, rank, reason), weight=weight
    )
    if outcome is not None and not state.policy.allows(state.failures):
        return draining.enter(state, outcome)
    state, more = _judge(state)
    return state, (*effects, *more)


def _complete(record: WorkerRecord) -> Report:
    """A survivor's report, with what it may not know of itself."""
    report = record.report or Report()
    return replace(report, is_blank=record.is_blank)


def _explain(state: State, reports: Iterable[Report]) -> str:
    """What has interrupted the generation, in one sentence; "" where nothing has."""
    if state.cause is not None:
        return state.cause.reason
    return next((report.trouble for report in reports if report.trouble and report.wish is Wish.CONTINUE), "")


def _publish_next(
    state: State, verdict: Verdict, survivors: tuple[WorkerRecord, ...], ranks: Mapping[Worker, int]
) -> tuple[State, tuple[Effect, ...]]:
    composition = compose(state, verdict.decision, survivors)
    if verdict.decision is Decision.RETRY:
        verdict = replace(verdict, survivors=tuple(ranks[record.worker] for record in composition.members))
    if any(record.report is not None and record.report.wish is not Wish.BEGIN for record in survivors):
        if not state.may_form_anew:
            return draining.enter(state, exhaust_resets(state.resets, verdict.reason, state.cause))
        state = replace(state, resets=state.resets + 1)
    reason = verdict.reason or _describe_all(len(composition.members))
    return _publish(state, verdict, composition, reason)


def _describe_all(workers: int) -> str:
    return "the only worker has joined" if workers == 1 else f"all {workers} workers have joined"


def _publish(state: State, verdict: Verdict, composition: Composition, reason: str) -> tuple[State, tuple[Effect, ...]]:
    number = state.number + 1
    members = composition.members
    assignments = rank([record.worker.slot for record in members])
    added = {record.worker for record in composition.added}
    records = tuple(
        replace(
            record,
            standing=Standing.MEMBER,
            assignment=assignment,
            generation=number,
            report=None,
            is_blank=verdict.decision in _TAKEN_IN and (record.is_blank or record.worker in added),
        )
        for record, assignment in zip(members, assignments, strict=True)
    )
    generation = Generation(number, tuple(record.worker for record in records))
    former = state
    state = start_leases(state.with_records(records), {worker.slot.host for worker in generation.members})
    state = replace(
        state,
        phase=Phase.RUNNING,
        generation=generation,
        verdict=verdict,
        cause=None,
        deadline=None,
        short_since=None,
        gathering_since=None,
        offer=Offer(state.offer.number),
    )
    effects: tuple[Effect, ...] = (Publish(generation, assignments, reason, verdict),)
    for record in composition.removed:
        state, more = retire(state, [record], explain_removal(former, record.worker.slot))
        effects += more
    state, more = chain(state, staff, offer_resize, _note_settled)
    return state, effects + more
