"""What holds of rounds, in which all workers of a job are started again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import Effect, Event, Exited, HostsChanged, Joined, Launch
from rendezvous.core.model import Worker
from rendezvous.core.rounds import MOST_PAUSE_SECONDS, QUICK_SECONDS
from rendezvous.core.state import State
from tests.rendezvous.core.judgement import number_members


@dataclass(frozen=True)
class Rounds:
    """The rounds of a job as far as they are known, which the next step has to follow.

    workers: of the newest round, in rank order. since: when they were launched.
    quick: how many rounds in a row have ended within seconds.
    is_joined: a worker has called `init()`.
    """

    workers: tuple[Worker, ...] = ()
    since: float = 0.0
    quick: int = 0
    is_joined: bool = False

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
        if now.is_world(before):
            assert all(each.round is not None for each in launches), "one is started alone"
        if after.rounds == before.rounds and (self.workers or not launches):
            return now
        assert after.rounds == before.rounds + bool(self.workers), "rounds are counted"
        assert set(self.workers) <= set(ended), "a round begins before all of the last one have ended"
        assert after.stops_at is None, "nobody is started after a stop notice for the job"
        _check_round(after, launches)
        return replace(now, workers=tuple(each.worker for each in launches), since=after.clock)

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
            assert after.restarts == before.restarts, "none was decided: nobody was left, and others are started"
            return self
        restart = after.restart or before.restart  # None where all has happened at once
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
        cause = (after.restart or before.restart).cause
        assert blamed <= {event.worker.slot, None if cause.worker is None else cause.worker.slot}
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
    alive = [each.worker for each in state.alive()]
    assert sorted(alive) == sorted(each.worker for each in launches), "one of another round is alive"
    assert state.phase in {Phase.FORMING, Phase.RUNNING}
    assert not state.count(WorkerState.LEAVING)


def _check_offer(before: State, after: State) -> None:
    """Other slots are offered: no round goes on in one that is not, if there are enough others."""
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
        assert after.phase is not Phase.FORMING, "the job goes on after its stop notice"
    if after.phase is Phase.RESTARTING:
        assert all(each.state in {WorkerState.LEAVING, WorkerState.ENDED} for each in after.workers.values())
