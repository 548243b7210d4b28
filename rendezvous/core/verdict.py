"""The verdict, which is the recovery decision: one for all survivors of a generation, from what each has reported.

`decide` goes through these, in this order:

1. All have called `init()` (again): BEGIN. If only some have, nobody can be right: the job ends. If all were
   interrupted before they were connected, nothing has happened since the last verdict, and it stands.
2. A survivor that has returned to its last commit, or an operation that cannot be run again (`find_obstacle`): RESTORE.
3. A survivor that has begun again at a commit, because a resize was offered: RESIZE. All have seen that offer at the
   same place; a survivor that has not come back yet is still in the operation that told of it.
4. Else RETRY: the survivors go on where they stand. This never takes anybody in, since a newcomer stands elsewhere.

Two things can be in the way. A survivor that restores needs a state to go back to, and one must hold the state that the
others copy: else the job ends. A survivor that has done nothing in this generation yet has nothing to go back from: it
may restore as it is. And a job needs its least number of workers: with fewer it waits for newcomers, and takes them in
with a RESTORE, whatever the survivors could have done alone.

Commit rounds decide what is done. A step's reductions may be thrown away until its round is committed, so a round that
some survivor has not even asked for is not done, and all make the step anew; one that every survivor has asked for is
done, with the lost worker's share in it. One that somebody has seen committed was asked for by all: if a survivor does
not know of it, the reports contradict each other, and the job ends rather than guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rendezvous.core.reports import Decision, Done, JoinReason, PendingOperation, Report, Survivors, Verdict

BARRIER = "barrier."  # how the names of barriers begin


def find_contradiction(survivors: Survivors) -> str | None:
    """Why the reports cannot all be true: somebody has seen a round committed that another never asked for."""
    for rank, done in survivors.list_completed_rounds():
        if survivors.find_least_round(done.ranks) >= done.number:
            continue
        for other in survivors.list_members(done.ranks):
            is_known = survivors.find_round(other, done.ranks) >= done.number
            if not is_known and survivors.reports[other].floor <= done.index:
                return (
                    f"rank {rank} has committed step {done.number} and rank {other} has not even finished it, which "
                    "cannot be: this is a fault of hvdrun, and going on would be a guess"
                )
    return None


def find_done(survivors: Survivors) -> tuple[Done, ...]:
    """The pending commit rounds that count as done, and what some have done and all can."""
    found: dict[Done, None] = {}
    for rank, operation in survivors.list_pending():
        if operation.number:
            if _is_committed(survivors, operation):
                answer = survivors.find_answer(rank, operation)
                found[Done(operation.ranks, operation.number, answer=answer)] = None
        elif _is_passed(survivors, rank, operation):
            found[Done(operation.ranks, 0, operation.name)] = None
        elif answer := survivors.find_answer(rank, operation):
            found[Done(operation.ranks, 0, operation.name, answer)] = None
    return tuple(sorted(found, key=lambda done: (done.ranks, done.number, done.name)))


def find_obstacle(survivors: Survivors) -> str | None:
    """Why the survivors cannot go on where they stand, naming the operation and the rank; None when they can."""
    for rank, operation in survivors.list_pending():
        reason = _explain_obstacle(survivors, rank, operation)
        if reason is not None:
            return f"{operation.title} cannot be repeated on rank {rank}: {reason}"
    return None


def _explain_obstacle(survivors: Survivors, rank: int, operation: PendingOperation) -> str | None:
    ahead = survivors.find_out_of_window(rank, operation)
    if ahead is not None:
        return f"rank {ahead} is too far ahead to know whether it has done it"
    if _is_passed(survivors, rank, operation) or (operation.number and _is_committed(survivors, operation)):
        return None
    if survivors.find_answer(rank, operation):
        return None
    if operation.obstacle:
        return operation.obstacle
    lost = survivors.find_lost(operation.ranks)
    if lost is not None and not survivors.is_everybody(operation.ranks):
        return f"rank {lost} of its process set is gone"
    if operation.root is not None and operation.root not in survivors.reports:
        return f"rank {operation.root}, whose data it needs, is gone"
    user = None if operation.number else survivors.find_completer(rank, operation)
    return None if user is None else f"rank {user} has done it already, and may have used the result"


def _is_committed(survivors: Survivors, operation: PendingOperation) -> bool:
    """Every survivor of the set has asked for this commit round: its step was finished everywhere."""
    return survivors.find_least_round(operation.ranks) >= operation.number


def _is_passed(survivors: Survivors, rank: int, operation: PendingOperation) -> bool:
    """It is a barrier that somebody has passed: all had come to it."""
    return operation.name.startswith(BARRIER) and survivors.is_completed_elsewhere(rank, operation)


STATE_LOST = "nobody who is left holds the state of the training: those who did are gone, and the others had not got it"
_RESIZED = "hosts have come or gone"
_REPEATING = (
    "To survive this, decorate the training function with hvd.elastic.run, which begins again at the last commit, or "
    "use operations that can be repeated, such as hvd.allreduce in place of hvd.allreduce_"
)
_REPEATING_INSIDE = (
    "The operation stands outside the function that is decorated with hvd.elastic.run: to survive this, call it inside "
    "that function, before it returns, or use operations that can be repeated, such as hvd.allreduce and hvd.broadcast"
)
_REPLACING = (
    "Others can take the place of the lost where the training function is decorated with hvd.elastic.run, and every "
    "worker has entered it"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What there is to decide on.

    size: of the interrupted generation.
    reports: of its survivors, by their ranks in it; at least one.
    min_size: how many workers the job needs.
    newcomers: how many wait to be taken in.
    former: the verdict with which the interrupted generation began.
    cause: what has interrupted it, as one sentence without a full stop; "" when nothing has.
    had_state: the ranks of survivors whose function that could have begun again is over.
    """

    size: int
    reports: Mapping[int, Report]
    min_size: int = 1
    newcomers: int = 0
    former: Verdict = Verdict(Decision.BEGIN)  # noqa: RUF009 - an immutable value may be shared
    cause: str = ""
    had_state: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class AwaitWorkers:
    """There are too few workers; newcomers may change that."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The job cannot go on, for this reason: one sentence, or two.

    is_state_lost: nobody who is left holds the state.
    """

    reason: str
    is_state_lost: bool = False


Answer: TypeAlias = Verdict | AwaitWorkers | End


def decide(situation: Situation) -> Answer:
    """What all survivors do now. The answer does not depend on the order in which they have reported."""
    if (mixture := _find_mixture(situation.reports)) is not None:
        return End(mixture)
    reasons = {report.reason for report in situation.reports.values()}
    if reasons == {JoinReason.BEGIN}:
        return _begin(situation)
    if reasons == {JoinReason.FORM} and situation.former.decision is not Decision.RETRY:
        return _begin_as_before(situation)
    survivors = Survivors(situation.size, situation.reports)
    if (contradiction := find_contradiction(survivors)) is not None:
        return End(_join_sentences(situation.cause, contradiction))
    obstacle = find_obstacle(survivors) or _find_restored(situation.reports)
    if obstacle is not None:
        return _restore(situation, obstacle, _REPEATING)
    if JoinReason.RESIZE in reasons:
        return _take_in(
            situation, Verdict(Decision.RESIZE, removed_only=_is_removal(situation, reasons), reason=_RESIZED)
        )
    if len(situation.reports) < situation.min_size:
        return _restore(situation, _explain_shortage(situation), _REPLACING)
    done = find_done(survivors)
    reason = _join_sentences(situation.cause, f"{len(situation.reports)} of {situation.size} go on where they stand")
    return Verdict(Decision.RETRY, tuple(sorted(situation.reports)), done, reason=reason)


def _find_mixture(reports: Mapping[int, Report]) -> str | None:
    """Why there is no sense in what they want together, if there is none."""
    begun = [rank for rank, report in sorted(reports.items()) if report.reason is JoinReason.BEGIN]
    others = [rank for rank, report in sorted(reports.items()) if report.reason is not JoinReason.BEGIN]
    if not begun or not others:
        return None
    return (
        f"rank {begun[0]} called hvd.shutdown() and hvd.init() again while rank {others[0]} had not; "
        "every worker must call them as often as the others"
    )


def _begin(situation: Situation) -> Answer:
    """All have called `init()`; nobody has anything to lose, nor a state to have others copy."""
    if len(situation.reports) + situation.newcomers < situation.min_size:
        return End(f"{_join_sentences(situation.cause, _explain_shortage(situation))}. {_REPLACING}")
    count = len(situation.reports) + situation.newcomers
    return Verdict(Decision.BEGIN, reason=situation.cause and f"{situation.cause}; {count} begin")


def _begin_as_before(situation: Situation) -> Answer:
    """Nobody was connected: the last verdict stands, but who was taken in by it may not be the only ones left."""
    former = situation.former
    if former.decision is Decision.BEGIN:
        return _begin(situation)
    is_removal = former.removed_only and not situation.newcomers
    return _take_in(situation, Verdict(former.decision, removed_only=is_removal, reason=former.reason))


def _restore(situation: Situation, reason: str, remedy: str) -> Answer:
    """Go back to the last commit, where everybody can; the remedy is for when somebody cannot."""
    reason = _join_sentences(situation.cause, reason)
    stateless = sorted(rank for rank, report in situation.reports.items() if not may_begin_again(report))
    if stateless or not any(report.has_state for report in situation.reports.values()):
        is_past = remedy is _REPEATING and stateless and situation.had_state.issuperset(stateless)
        return End(f"{reason}. {_REPEATING_INSIDE if is_past else remedy}")
    return _take_in(situation, Verdict(Decision.RESTORE, reason=reason))


def _take_in(situation: Situation, verdict: Verdict) -> Answer:
    """Newcomers are a part of the next generation, if somebody is left whom they can copy."""
    if not any(report.has_state and not report.needs_state for report in situation.reports.values()):
        return End(_join_sentences(situation.cause, STATE_LOST), is_state_lost=True)
    if len(situation.reports) + situation.newcomers < situation.min_size:
        return AwaitWorkers(_explain_shortage(situation))
    return verdict


def may_begin_again(report: Report) -> bool:
    """It has a state to go back to, or has done nothing yet from which it would have to go back."""
    is_untouched = report.reason is JoinReason.CONTINUE and not (report.pending or report.completed)
    return report.has_state or report.reason is JoinReason.FORM or is_untouched


def _find_restored(reports: Mapping[int, Report]) -> str | None:
    restored = [(rank, report) for rank, report in sorted(reports.items()) if report.reason is JoinReason.RESTORE]
    if not restored:
        return None
    rank, report = next((each for each in restored if each[1].error), restored[0])
    return f"rank {rank} has returned to its last commit{f': {report.error}' if report.error else ''}"


def _is_removal(situation: Situation, reasons: set[JoinReason]) -> bool:
    """All stand at the same place and nobody comes: there is nothing to copy."""
    return reasons == {JoinReason.RESIZE} and not situation.newcomers


def _explain_shortage(situation: Situation) -> str:
    count = len(situation.reports)
    return f"only {count} of at least {situation.min_size} workers (--min-np) {'is' if count == 1 else 'are'} left"


def _join_sentences(*sentences: str) -> str:
    """What is empty, or said by a later one, is left out."""
    return "; ".join(
        sentence
        for number, sentence in enumerate(sentences, start=1)
        if sentence and not any(sentence in later for later in sentences[number:])
    )
