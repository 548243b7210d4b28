"""The recovery decision: one for all survivors of a generation, from their reports.

`decide` applies these rules, in this order:

1. All survivors have called `init()` (again): BEGIN. If only some have, the program is wrong, and the job ends. If all
   were interrupted before they were connected, nothing has happened since the last decision: it is repeated.
2. A survivor has restored its last commit, or an operation cannot be repeated (`find_obstacle`): RESTORE.
3. A survivor has called its function again at a commit, because a resize was offered: RESIZE. All survivors have seen
   that offer at the same commit; one that has not joined yet is still in the operation that carried the offer.
4. Else RETRY: the survivors continue where they are. RETRY adds no worker, since a new one is at no place.

Two conditions apply. A survivor that restores needs a state, and at least one must have the state that the others copy:
else the job ends. A survivor that has done nothing in this generation yet may restore without a state. And a job needs
its least number of workers: with fewer it waits for new ones, and adds them with a RESTORE, even if the survivors could
have continued alone.

Commit rounds decide whether a step is done. A step's reductions may be dropped until its round is committed. A round
that some survivor has not submitted is not done, and all repeat the step. A round that every survivor has submitted is
done, with the lost worker's share in it. A round that some rank has seen committed was submitted by all: if a survivor
does not know it, the reports contradict each other, and the job ends rather than guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rendezvous.core.reports import Action, Done, JoinReason, PendingOperation, RecoveryDecision, Report, Survivors

BARRIER = "barrier."  # the prefix of barriers' names


def find_contradiction(survivors: Survivors) -> str | None:
    """Why the reports cannot all be true: a rank has seen a round committed that another has not submitted."""
    for rank, done in survivors.list_completed_rounds():
        if survivors.find_least_round(done.ranks) >= done.number:
            continue
        for other in survivors.list_members(done.ranks):
            is_known = survivors.find_round(other, done.ranks) >= done.number
            if not is_known and survivors.reports[other].floor <= done.index:
                return (
                    f"rank {rank} has committed step {done.number} and rank {other} has not even finished it, which "
                    "cannot be: this is a bug of hvdrun, and to continue would be a guess"
                )
    return None


def find_done(survivors: Survivors) -> tuple[Done, ...]:
    """The pending operations that count as done: committed rounds, passed barriers, and those with a known response."""
    found: dict[Done, None] = {}
    for rank, operation in survivors.list_pending():
        if operation.number:
            if _is_committed(survivors, operation):
                response = survivors.find_response(rank, operation)
                found[Done(operation.ranks, operation.number, response=response)] = None
        elif _is_passed(survivors, rank, operation):
            found[Done(operation.ranks, 0, operation.name)] = None
        elif response := survivors.find_response(rank, operation):
            found[Done(operation.ranks, 0, operation.name, response)] = None
    return tuple(sorted(found, key=lambda done: (done.ranks, done.number, done.name)))


def find_obstacle(survivors: Survivors) -> str | None:
    """Why the survivors cannot continue where they are, naming the operation and the rank; None if they can."""
    for rank, operation in survivors.list_pending():
        reason = _explain_obstacle(survivors, rank, operation)
        if reason is not None:
            return f"{operation.title} cannot be repeated on rank {rank}: {reason}"
    return None


def _explain_obstacle(survivors: Survivors, rank: int, operation: PendingOperation) -> str | None:
    ahead = survivors.find_out_of_window(rank, operation)
    if ahead is not None:
        return f"rank {ahead} is too far ahead to know whether it has completed it"
    if _is_passed(survivors, rank, operation) or (operation.number and _is_committed(survivors, operation)):
        return None
    if survivors.find_response(rank, operation):
        return None
    if operation.obstacle:
        return operation.obstacle

    lost = survivors.find_lost(operation.ranks)
    if lost is not None and not survivors.is_everybody(operation.ranks):
        return f"rank {lost} of its process set is lost"
    if operation.root is not None and operation.root not in survivors.reports:
        return f"rank {operation.root}, whose data it needs, is lost"

    user = None if operation.number else survivors.find_completer(rank, operation)
    if user is None:
        return None
    return f"rank {user} has completed it, and may have used the result"


def _is_committed(survivors: Survivors, operation: PendingOperation) -> bool:
    """Every survivor of the set has submitted this commit round: each has finished the step."""
    return survivors.find_least_round(operation.ranks) >= operation.number


def _is_passed(survivors: Survivors, rank: int, operation: PendingOperation) -> bool:
    """Whether the operation is a barrier that some rank has passed: all had reached it."""
    return operation.name.startswith(BARRIER) and survivors.is_completed_elsewhere(rank, operation)


STATE_LOST = "no remaining worker has the state of the training: it was lost before others had received it"
_RESIZED = "hosts were added or removed"
_REPEATING = (
    "To survive this, decorate the training function with hvd.elastic.run, which restores the last commit and calls it "
    "again, or use operations that can be repeated, such as hvd.allreduce instead of hvd.allreduce_"
)
_REPEATING_INSIDE = (
    "The operation is outside the function that is decorated with hvd.elastic.run: to survive this, call it inside "
    "that function, before it returns, or use operations that can be repeated, such as hvd.allreduce and hvd.broadcast"
)
_REPLACING = (
    "Lost workers can be replaced if the training function is decorated with hvd.elastic.run, and every worker has "
    "entered it"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of `decide`.

    size: the size of the interrupted generation.
    reports: the reports of its survivors, by their ranks in it; at least one.
    min_size: how many workers the job needs.
    newcomers: how many new workers wait to be added.
    former: the decision with which the interrupted generation began.
    interruption: what has interrupted it, as one sentence without a full stop; "" if nothing has.
    had_state: the ranks of survivors that have left the function that could have been called again.
    """

    size: int
    reports: Mapping[int, Report]
    min_size: int = 1
    newcomers: int = 0
    former: RecoveryDecision = RecoveryDecision(Action.BEGIN)  # noqa: RUF009 - an immutable value may be shared
    interruption: str = ""
    had_state: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class AwaitWorkers:
    """There are too few workers; new ones may come."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The job cannot continue, for this reason: one sentence, or two.

    is_state_lost: no remaining worker has the state.
    """

    reason: str
    is_state_lost: bool = False


Answer: TypeAlias = RecoveryDecision | AwaitWorkers | End


def decide(situation: Situation) -> Answer:
    """What all survivors do now; the order of their reports does not matter."""
    if (mixture := _find_mixed_joins(situation.reports)) is not None:
        return End(mixture)
    reasons = {report.reason for report in situation.reports.values()}
    if reasons == {JoinReason.BEGIN}:
        return _begin(situation)
    if reasons == {JoinReason.FORM} and situation.former.action is not Action.RETRY:
        return _begin_as_before(situation)

    survivors = Survivors(situation.size, situation.reports)
    if (contradiction := find_contradiction(survivors)) is not None:
        return End(_join_sentences(situation.interruption, contradiction))
    obstacle = find_obstacle(survivors) or _find_restored(situation.reports)
    if obstacle is not None:
        return _restore(situation, obstacle, _REPEATING)
    if JoinReason.RESIZE in reasons:
        return _add_newcomers(
            situation, RecoveryDecision(Action.RESIZE, removed_only=_is_removal(situation, reasons), reason=_RESIZED)
        )
    if len(situation.reports) < situation.min_size:
        return _restore(situation, _explain_shortage(situation), _REPLACING)

    done = find_done(survivors)
    reason = _join_sentences(
        situation.interruption, f"{len(situation.reports)} of {situation.size} continue where they are"
    )
    return RecoveryDecision(Action.RETRY, tuple(sorted(situation.reports)), done, reason=reason)


def _find_mixed_joins(reports: Mapping[int, Report]) -> str | None:
    """Why these reasons to join exclude each other; None if they do not."""
    begun = [rank for rank, report in sorted(reports.items()) if report.reason is JoinReason.BEGIN]
    others = [rank for rank, report in sorted(reports.items()) if report.reason is not JoinReason.BEGIN]
    if not begun or not others:
        return None
    return (
        f"rank {begun[0]} called hvd.shutdown() and hvd.init() again while rank {others[0]} had not; "
        "every worker must call them as often as the others"
    )


def _begin(situation: Situation) -> Answer:
    """All have called `init()`: there is no state to restore or to copy."""
    if len(situation.reports) + situation.newcomers < situation.min_size:
        return End(f"{_join_sentences(situation.interruption, _explain_shortage(situation))}. {_REPLACING}")
    count = len(situation.reports) + situation.newcomers
    return RecoveryDecision(Action.BEGIN, reason=situation.interruption and f"{situation.interruption}; {count} begin")


def _begin_as_before(situation: Situation) -> Answer:
    """No survivor was connected: repeat the last decision, unless only workers that it added are left."""
    former = situation.former
    if former.action is Action.BEGIN:
        return _begin(situation)
    is_removal = former.removed_only and not situation.newcomers
    return _add_newcomers(situation, RecoveryDecision(former.action, removed_only=is_removal, reason=former.reason))


def _restore(situation: Situation, reason: str, remedy: str) -> Answer:
    """Restore the last commit if all survivors can; if one cannot, the job ends, and the remedy is named."""
    reason = _join_sentences(situation.interruption, reason)
    stateless = sorted(rank for rank, report in situation.reports.items() if not can_restore(report))
    if stateless or not any(report.has_state for report in situation.reports.values()):
        is_past = remedy is _REPEATING and stateless and situation.had_state.issuperset(stateless)
        return End(f"{reason}. {_REPEATING_INSIDE if is_past else remedy}")
    return _add_newcomers(situation, RecoveryDecision(Action.RESTORE, reason=reason))


def _add_newcomers(situation: Situation, decision: RecoveryDecision) -> Answer:
    """Add the new workers, if a survivor has the state that they copy."""
    if not any(report.has_state and not report.needs_state for report in situation.reports.values()):
        return End(_join_sentences(situation.interruption, STATE_LOST), is_state_lost=True)
    if len(situation.reports) + situation.newcomers < situation.min_size:
        return AwaitWorkers(_explain_shortage(situation))
    return decision


def can_restore(report: Report) -> bool:
    """Whether the worker has a state to restore, or has done nothing that it would have to undo."""
    is_untouched = report.reason is JoinReason.CONTINUE and not (report.pending or report.completed)
    return report.has_state or report.reason is JoinReason.FORM or is_untouched


def _find_restored(reports: Mapping[int, Report]) -> str | None:
    restored = [(rank, report) for rank, report in sorted(reports.items()) if report.reason is JoinReason.RESTORE]
    if not restored:
        return None
    rank, report = next((each for each in restored if each[1].error), restored[0])
    return f"rank {rank} has restored its last commit{f': {report.error}' if report.error else ''}"


def _is_removal(situation: Situation, reasons: set[JoinReason]) -> bool:
    """All are at the same commit and no worker is added: there is no state to copy."""
    return reasons == {JoinReason.RESIZE} and not situation.newcomers


def _explain_shortage(situation: Situation) -> str:
    count = len(situation.reports)
    return f"only {count} of at least {situation.min_size} workers (--min-np) {'is' if count == 1 else 'are'} left"


def _join_sentences(*sentences: str) -> str:
    """Join sentences; one that is empty, or contained in a later one, is left out."""
    return "; ".join(
        sentence
        for number, sentence in enumerate(sentences, start=1)
        if sentence and not any(sentence in later for later in sentences[number:])
    )
