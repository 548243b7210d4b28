"""What a decision, an outcome or a round may be, in the words of the laws and not of the code that they judge."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import (
    Effect,
    Event,
    Exited,
    HostsChanged,
    Joined,
    Launch,
    Lost,
    Noticed,
    Reported,
    Signalled,
    Stopped,
    Ticked,
)
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.core.outcome import Cause, Outcome
from rendezvous.core.reports import Done, JoinReason, PendingOperation, RecoveryDecision, Report
from rendezvous.core.rounds import MOST_PAUSE_SECONDS, QUICK_SECONDS
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


def check_retry(size: int, reports: Mapping[int, Report], decision: RecoveryDecision) -> None:
    """Every pending operation of every survivor is decided once: it is done, or run again by all who were in it."""
    assert all(report.reason in {JoinReason.CONTINUE, JoinReason.FORM} for report in reports.values())
    for rank, report in reports.items():
        for operation in report.pending:
            done = Done(operation.ranks, operation.number, "" if operation.number else operation.name)
            others = {other: known for other, known in reports.items() if other in operation.ranks and other != rank}
            called = [each for each in decision.done if replace(each, response=b"") == done]
            if called:
                assert is_known_to_all(operation, others), (
                    "an operation that a survivor has not even requested is called done"
                )
                assert not called[0].response or is_response(called[0], others)
            else:
                assert not operation.obstacle
                assert operation.root is None or operation.root in reports
                assert len(operation.ranks) == size or all(member in reports for member in operation.ranks)
                assert not any(is_done(operation, report.seen, known) for known in others.values()), (
                    "an operation that a survivor has done is run again"
                )


def is_response(done: Done, others: Mapping[int, Report]) -> bool:
    """Another survivor has had this response."""
    return any(
        (each.ranks, each.name, each.response) == (done.ranks, done.name, done.response)
        for known in others.values()
        for each in known.completed
    )


def is_known_to_all(operation: PendingOperation, others: Mapping[int, Report]) -> bool:
    """Every other member has asked for this commit round; of a barrier, one has passed it."""
    if not operation.number:
        return any(each.name == operation.name for known in others.values() for each in known.completed)
    return all(
        any(ranks == operation.ranks and number >= operation.number for ranks, number in list_rounds(known))
        for known in others.values()
    )


def list_rounds(report: Report) -> list[tuple[tuple[int, ...], int]]:
    """The sets and numbers of the commit rounds that a survivor has requested."""
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
    """The outcome that an event has brought about names that event."""
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
    """The job has succeeded although its last workers have not: they were not needed any more, or none of them ran."""
    members = [record for record in after.workers.values() if record.generation == after.number]
    # Before the first generation others took their places.
    is_made_good = after.first_failure is None or not after.number
    is_over = is_made_good and not after.alive() and any(r.is_done and r.returncode == 0 for r in members)
    return is_over and all(
        r.state is WorkerState.LEAVING or r.generation != after.number or before.last_heard[r.worker.slot.host] is None
        for r in before.alive()
    )


def is_early_success(event: Event, before: State) -> bool:
    """A worker has exited with 0 before the first generation, and was not being stopped."""
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
    assert state.refusal is None or state.waiting == 0, "no worker waits for what will never be"
    assert state.phase is not Phase.RUNNING or state.waiting == 0
    used = [slot for slots in state.hosts.values() for slot in slots]
    assert sorted(used) == sorted(slot for slot in state.workers if slot.host in state.hosts)
    assert tuple(state.hosts) == tuple(state.last_heard)
    if not state.policy.outlives_losses:
        assert tuple(used) == tuple(state.workers)
        assert not used or state.policy.min_size <= len(used) <= state.policy.max_size


@dataclass(frozen=True)
class Rounds:
    """The rounds of a job as far as they are known, which the next step has to follow.

    workers: the workers of the newest round, in rank order. since: when they were launched.
    quick: how many rounds in a row have ended within seconds.
    is_joined: a worker has called `init()`.
    is_kept: the only host of the newest round has been in use since, and no worker was started alone.
    """

    workers: tuple[Worker, ...] = ()
    since: float = 0.0
    quick: int = 0
    is_joined: bool = False
    is_kept: bool = False

    def follow(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], ended: Collection[Worker]
    ) -> Self:
        """The rounds after one more step; ended: the workers that have exited, or whose host is gone."""
        limit = after.policy.restarts.limit
        assert limit is None or after.restarts <= limit
        launches = [each for each in effects if isinstance(each, Launch)]
        now = self._judge(before, event, after)
        if isinstance(event, Joined) and event.worker.slot in before.workers:
            now = replace(now, is_joined=True)
        now._check_blame(before, event, after)
        if limit == 0:
            assert after.restart is None, "no restart is allowed"
        elif isinstance(event, HostsChanged) and now.is_world(before):
            _check_offer(before, after)
        # A report repeats orders that were lost, also one from before the world was seen.
        if now.is_world(before) and not isinstance(event, Reported):
            assert all(each.round is not None for each in launches), "one is started alone"
        if after.rounds == before.rounds and (self.workers or not launches):
            is_alone = any(each.round is None for each in launches)  # others are orders of this round, repeated
            is_kept = {each.slot.host for each in self.workers} <= set(after.hosts) and not is_alone
            return replace(now, is_kept=self.is_kept and is_kept)
        assert after.rounds == before.rounds + bool(self.workers), "rounds are counted"
        assert set(self.workers) <= set(ended), "a round begins before all of the last one have ended"
        assert after.stops_at is None, "no worker is started after a stop notice for the job"
        _check_round(after, launches)
        workers, hosts = tuple(each.worker for each in launches), {each.worker.slot.host for each in launches}
        if after.files_since is not None and after.files_since < after.rounds:
            assert self.is_kept, "a round continues with files that are lost, or that others have not seen"
            assert hosts == {each.slot.host for each in self.workers}
        return replace(now, workers=workers, since=after.clock, is_kept=len(hosts) == 1)

    def is_world(self, state: State) -> bool:
        """All workers are started together, and none of them alone."""
        is_world = state.has_world if state.policy.restarts.needs_world else state.policy.may_restart
        return is_world and not (state.policy.is_elastic and self.is_joined)

    def _judge(self, before: State, event: Event, after: State) -> Self:
        """All have ended and are to be started again: a loss is counted, and a pause follows from quick rounds."""
        begins = after.rounds > before.rounds
        was_judged = before.restart is not None and before.restart.at is not None
        if was_judged or not (begins or (after.restart is not None and after.restart.at is not None)):
            assert after.restarts == before.restarts
            return self
        if after.policy.restarts.needs_world and not before.has_world:
            assert after.restarts == before.restarts, "none was decided: no worker was left, and others are started"
            return self
        restart = after.restart or before.restart  # None where all has happened in one step
        is_notice = isinstance(event, Exited) and before.is_killed_by_notice(event.worker, event.returncode)
        is_planned = is_notice if restart is None else restart.is_planned
        has_begun = begins or not after.unreported
        assert after.restarts - before.restarts in ({0} if is_planned else {0, 1} if begins else {int(has_begun)})
        lasted_seconds = (after.clock if restart is None else restart.since) - self.since
        quick = 0 if is_planned or lasted_seconds >= QUICK_SECONDS else self.quick + 1
        pause_seconds = 0.0 if quick < 2 else min(MOST_PAUSE_SECONDS, 2.0 ** (quick - 2))
        if after.restart is not None:
            assert after.restart.at == after.clock + pause_seconds, "a pause that does not follow from the rounds"
        else:
            assert not pause_seconds
        return replace(self, quick=quick)

    def _check_blame(self, before: State, event: Event, after: State) -> None:
        """A slot is blamed for the cause of a restart alone, and never where the size is fixed."""
        if not after.policy.may_restart:
            return
        was_known = not after.policy.restarts.needs_world  # else a slot may have been blamed before
        if after.policy.is_fixed and was_known and self.is_world(after):
            assert not after.blacklist.slots, "a slot is blamed, though the job needs all"
        if before.restart is None or not isinstance(event, Exited):
            return
        former, known = before.blacklist.slots, after.blacklist.slots
        blamed = {slot for slot in known if known[slot] != former.get(slot)}
        outcome = (after.restart or before.restart).outcome
        assert blamed <= {event.worker.slot, None if outcome.worker is None else outcome.worker.slot}
        assert len(blamed) <= 1, "only the cause counts"
        if after.restart is not None and after.restart.at is None:
            assert not blamed, "an end counts that may follow from another one"


def _check_round(state: State, launches: Sequence[Launch]) -> None:
    """All are started together: one world, numbered host by host."""
    slots = [each.worker.slot for each in launches]
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    assert [each.assignment for each in launches] == list(number_members(slots))
    assert state.policy.min_size <= len(launches) <= state.policy.max_size
    for each in launches:
        assert each.round is not None
        assert (each.round.number, each.round.group_size) == (state.rounds, len(hosts))
        assert each.round.group_rank == hosts.index(each.worker.slot.host)
        assert each.round.files_since == state.files_since
    assert (state.files_since is None) == (len(hosts) > 1), "files that some ranks cannot see"
    alive = [each.worker for each in state.alive()]
    assert sorted(alive) == sorted(each.worker for each in launches), "one of another round is alive"
    assert state.phase in {Phase.FORMING, Phase.RUNNING}
    assert not state.count(WorkerState.LEAVING)


def _check_offer(before: State, after: State) -> None:
    """Other slots are offered: no round continues in one that is not, if there are enough others."""
    gone = [each.worker for each in before.alive() if not after.offers(each.worker.slot)]
    if gone and before.stops_at is None and after.slots_offered >= after.policy.min_size:
        is_left = after.restart is not None or after.outcome is not None or after.rounds > before.rounds
        assert is_left, f"{gone} train on in slots that are no longer offered"


def check_restart(before: State, after: State) -> None:
    """A job that restarts begins again, or ends; a stop notice for the whole job ends it."""
    assert (after.phase is Phase.RESTARTING) <= (after.restart is not None or after.outcome is not None)
    if before.phase is not Phase.RESTARTING:
        return
    assert after.phase in {Phase.RESTARTING, Phase.FORMING, Phase.DRAINING, Phase.FINISHED}
    if before.stops_at is not None:
        assert after.phase is not Phase.FORMING, "the job continues after its stop notice"
    if after.phase is Phase.RESTARTING:
        assert all(each.state in {WorkerState.LEAVING, WorkerState.ENDED} for each in after.workers.values())
