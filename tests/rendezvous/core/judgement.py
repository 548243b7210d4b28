"""What a verdict or an outcome may say, in the words of the laws and not of the code that is judged by them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import Event, Exited, Joined, Lost, Noticed, Signalled, Stopped, Ticked
from rendezvous.core.model import Assignment, Slot
from rendezvous.core.outcome import Cause, Outcome
from rendezvous.core.reports import Done, JoinReason, PendingOperation, Report, Verdict
from rendezvous.core.state import State

GIVEN_UP = frozenset(
    {Cause.NOT_RECOVERED, Cause.RESETS_EXHAUSTED, Cause.STATE_LOST, Cause.TOO_FEW_WORKERS, Cause.WORKER_FAILED}
)


def number_members(members: Sequence[Slot]) -> tuple[Assignment, ...]:
    """Every member's numbers, straight from their definitions and with no regard to speed."""

    def local_rank(position: int) -> int:
        return sum(1 for other in members[:position] if other.host == members[position].host)

    def alike(position: int) -> list[int]:
        return [other for other in range(len(members)) if local_rank(other) == local_rank(position)]

    return tuple(
        Assignment(
            rank=position,
            size=len(members),
            local_rank=local_rank(position),
            local_size=sum(1 for other in members if other.host == slot.host),
            cross_rank=alike(position).index(position),
            cross_size=len(alike(position)),
        )
        for position, slot in enumerate(members)
    )


def check_retry(size: int, reports: Mapping[int, Report], verdict: Verdict) -> None:
    """Every pending operation of every survivor is decided once: it is done, or run again by all who were in it."""
    assert all(report.reason in {JoinReason.CONTINUE, JoinReason.FORM} for report in reports.values())
    for rank, report in reports.items():
        for operation in report.pending:
            done = Done(operation.ranks, operation.number, "" if operation.number else operation.name)
            others = {other: known for other, known in reports.items() if other in operation.ranks and other != rank}
            called = [each for each in verdict.done if replace(each, answer=b"") == done]
            if called:
                assert is_known_to_all(operation, others), "what somebody has not even asked for is called done"
                assert not called[0].answer or is_answer(called[0], others)
            else:
                assert not operation.obstacle
                assert operation.root is None or operation.root in reports
                assert len(operation.ranks) == size or all(member in reports for member in operation.ranks)
                assert not any(is_done(operation, report.seen, known) for known in others.values()), (
                    "what somebody has done is run again"
                )


def is_answer(done: Done, others: Mapping[int, Report]) -> bool:
    """Somebody has had this answer."""
    return any(
        (each.ranks, each.name, each.answer) == (done.ranks, done.name, done.answer)
        for known in others.values()
        for each in known.completed
    )


def is_known_to_all(operation: PendingOperation, others: Mapping[int, Report]) -> bool:
    """Every other member has asked for this commit round; of a barrier, somebody has passed it."""
    if not operation.number:
        return any(each.name == operation.name for known in others.values() for each in known.completed)
    return all(
        any(ranks == operation.ranks and number >= operation.number for ranks, number in list_rounds(known))
        for known in others.values()
    )


def list_rounds(report: Report) -> list[tuple[tuple[int, ...], int]]:
    """The sets and numbers of the commit rounds that somebody has asked for."""
    pending = [(each.ranks, each.number) for each in report.pending]
    return pending + [(each.ranks, each.number) for each in report.completed]


def is_done(operation: PendingOperation, seen: int, known: Report) -> bool:
    """Another has done this very operation."""
    return any(
        (each.ranks, each.name, each.number) == (operation.ranks, operation.name, operation.number)
        and (each.index == operation.index if operation.index is not None else each.index > seen)
        for each in known.completed
    )


def explains(outcome: Outcome, event: Event, before: State, after: State) -> bool:
    """The outcome that an event has brought about tells of that event."""
    is_elastic = before.policy.is_elastic
    if before.policy.outlives_losses and outcome.cause in GIVEN_UP and outcome.exit_code == 75:
        return True
    if is_elastic and outcome.cause is Cause.STATE_LOST:
        returncode = outcome.returncode or 0
        code = returncode if returncode > 0 else 128 - returncode
        return outcome.exit_code == code and code not in {128, 129, 130, 137, 143}
    match event:
        case Exited(_, 0):
            return (outcome.cause, outcome.exit_code) == (Cause.SUCCEEDED, 0)
        case Exited() | Lost() | Ticked() if is_elastic and outcome.cause is Cause.SUCCEEDED:
            return outcome.exit_code == 0 and is_success_without(before, after)
        case Exited(worker, returncode, error, cannot_start):
            code = returncode if returncode > 0 else 128 - returncode
            killed = Cause.COMMAND_NOT_STARTED if cannot_start else Cause.WORKER_KILLED
            cause = Cause.WORKER_FAILED if error is None else killed
            return (outcome.cause, outcome.exit_code, outcome.worker) == (cause, code, worker)
        case Stopped(code, reason):
            return (outcome.cause, outcome.exit_code, outcome.reason) == (Cause.STOPPED, code, reason)
        case Lost(host, reason):
            return outcome.cause is Cause.HOST_LOST and host in outcome.reason and reason in outcome.reason
        case Ticked():
            return (outcome.cause, outcome.exit_code) in {(Cause.HOST_LOST, 75), (Cause.START_TIMED_OUT, 124)}
        case Joined():
            return (outcome.cause, outcome.exit_code) in {(Cause.NOT_RECOVERED, 75), (Cause.FAILS_AGAIN, 1)}
        case _:
            return False


def is_success_without(before: State, after: State) -> bool:
    """The job has succeeded although its last workers have not: nobody needed them any more, or none of them ran."""
    members = [record for record in after.workers.values() if record.generation == after.number]
    is_made_good = after.cause is None or not after.number  # before the first generation others took their places
    is_over = is_made_good and not after.alive() and any(r.is_done and r.returncode == 0 for r in members)
    return is_over and all(
        r.state is WorkerState.LEAVING or r.generation != after.number or before.last_heard[r.worker.slot.host] is None
        for r in before.alive()
    )


def is_early_success(event: Event, before: State) -> bool:
    """A worker has exited with 0 before the first generation, and nobody was stopping it."""
    if not isinstance(event, Exited) or event.returncode or before.number:
        return False
    return before.workers[event.worker.slot].state is not WorkerState.LEAVING


def explains_notice(outcome: Outcome, event: Event, before: State, after: State) -> bool:
    """A stop notice, or a signal to an agent, and no order, has brought this outcome about."""
    if isinstance(event, Signalled):
        return outcome.exit_code == 128 + event.signal and f"host {event.host} received" in outcome.reason
    if outcome.exit_code == 143:
        leaves_by = [*before.drained.values(), *([] if before.stops_at is None else [before.stops_at])]
        return isinstance(event, Ticked) and event.now - before.slept_seconds > min(leaves_by)
    if isinstance(event, Exited) and before.is_killed_by_notice(event.worker, event.returncode):
        return True
    has_come = before.stops_at is not None or isinstance(event, Noticed)
    return outcome.exit_code == 75 and has_come and not after.alive()


def check_counts(state: State) -> None:
    """What a state counts along equals a recount."""
    worker_states = Counter(record.state for record in state.workers.values())
    assert worker_states == Counter(state.counts)
    assert (state.waiting > 0) == (state.waiting_since is not None)
    assert state.deadline is None or state.phase in {Phase.DRAINING, Phase.REFORMING, Phase.RESTARTING}
    assert state.phase is not Phase.DRAINING or state.deadline is not None
    assert state.refusal is None or state.waiting == 0, "nobody waits for what will never be"
    assert state.phase is not Phase.RUNNING or state.waiting == 0
    used = [slot for slots in state.hosts.values() for slot in slots]
    assert sorted(used) == sorted(slot for slot in state.workers if slot.host in state.hosts)
    assert tuple(state.hosts) == tuple(state.last_heard)
    if not state.policy.outlives_losses:
        assert tuple(used) == tuple(state.workers)
        assert not used or state.policy.min_size <= len(used) <= state.policy.max_size
