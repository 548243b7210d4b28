"""A checker that holds the core to its laws while a job happens."""

import copy
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Self

from rendezvous.core import membership
from rendezvous.core.holds import restore
from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import (
    CoreError,
    Depart,
    Dismiss,
    Effect,
    Event,
    Exited,
    Finish,
    HostsChanged,
    Interrupt,
    Joined,
    Launch,
    Lost,
    Notify,
    OfferResize,
    Publish,
    Refuse,
    Reported,
    Stopped,
    Terminate,
    Ticked,
)
from rendezvous.core.model import Host, Policy, Slot, Worker
from rendezvous.core.outcome import Cause
from rendezvous.core.reports import Action, JoinReason, Report
from rendezvous.core.rounds import MOST_PAUSE_SECONDS
from rendezvous.core.state import State
from tests.rendezvous.core.laws import (
    Rounds,
    check_counts,
    check_restart,
    check_retry,
    explains,
    explains_notice,
    is_early_success,
    number_members,
)


class Checker:
    """Applies events to a job, and asserts what must hold after each.

    careful: compares the state before a step with a deep copy, which costs more than the step.
    """

    def __init__(self, policy: Policy, *, careful: bool) -> None:
        self.policy = policy
        self.state = membership.begin(policy)
        self.events: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.illegal = 0
        self.finish: Finish | None = None
        self._careful = careful
        self._launched: set[Worker] = set()
        self._terminated: set[Worker] = set()
        self._exited: dict[Worker, int] = {}
        self._gone: set[Worker] = set()  # with their hosts
        self._refused: set[Worker] = set()
        self._departed: set[Worker] = set()
        self._reports: dict[Worker, tuple[int, Report]] = {}  # of each worker's last join: after which generation
        self._published: list[Publish] = []
        self._rounds = Rounds()
        self._former: tuple[Worker, ...] = ()  # the members of the last generation of this round
        self._interrupted: set[int] = set()
        self._offers: list[OfferResize] = []
        self._before = self.state

    def fork(self) -> Self:
        """Another checker of the same history, for a future of its own."""
        other = copy.copy(self)
        other._careful = False
        for name, value in vars(self).items():
            if isinstance(value, set | dict | list):
                setattr(other, name, copy.copy(value))
        return other

    def apply(self, event: Event) -> tuple[Effect, ...] | None:
        """Let an event happen; what followed, or None when it was refused."""
        before = self._before = self.state
        known = copy.deepcopy(before) if self._careful else before
        self.events[type(event).__name__] += 1
        try:
            after, effects = membership.step(before, event)
        except CoreError:
            assert before == known, "a refused event has changed the state"
            self.illegal += 1
            return None
        assert before == known, "a step has changed the state before it"
        self.state = after
        self.phases[after.phase] += 1
        self._note_event(event)
        for effect in effects:
            self.effects[type(effect).__name__] += 1
            self._check_effect(effect)
        ended = self._exited.keys() | self._gone
        self._rounds = self._rounds.follow(before, event, after, effects, ended)
        check_restart(before, after)
        self._check_outcome(before, event)
        check_counts(after)
        if isinstance(event, Reported):
            assert membership.step(after, event) == (after, effects), "a repeated report brings news"
        return effects

    def restart(self) -> State:
        """The server begins again with nothing but the state; what it has then."""
        before, self.state = self.state, restore(self.state)
        records = zip(before.workers.values(), self.state.workers.values(), strict=True)
        changed = [(former.worker, latter.worker) for former, latter in records if former != latter]
        self._gone |= {former for former, _ in changed}
        renamed = dict(changed)
        self._launched |= {renamed[worker] for worker in self._launched & renamed.keys()}
        self._rounds = replace(self._rounds, workers=tuple(renamed.get(each, each) for each in self._rounds.workers))
        return self.state

    def end(self) -> None:
        """Every agent falls silent: the job must come to its end by the clock alone."""
        if not self.state.workers and not self.policy.outlives_losses:
            self.apply(HostsChanged((Host("z", self.policy.min_size),)))
        policy = self.policy
        limit = policy.start_timeout_seconds + policy.grace_seconds + 3 * policy.lease_seconds
        if policy.outlives_losses:
            limit += policy.start_timeout_seconds + policy.recovery.elastic_timeout_seconds + policy.report_seconds
        if policy.may_restart:
            limit += limit + policy.restarts.planned_grace_seconds + MOST_PAUSE_SECONDS
        last = self.state.now + limit
        while self.state.phase is not Phase.FINISHED:
            assert self.state.now <= last, f"the job has not ended {limit:g} s after the last sign of life"
            self.apply(Ticked(self.state.now + policy.lease_seconds / 2))
        finish = self.finish
        self.apply(Ticked(self.state.now))
        assert self.finish is finish is not None

    def _note_event(self, event: Event) -> None:
        match event:
            case Exited(worker, returncode) if self.finish is None:
                self._exited.setdefault(worker, returncode)
            case Joined(worker, after, report):
                record = self._before.workers[worker.slot]
                if record.worker == worker and (not record.generation or after == self._before.number):
                    self._reports[worker] = after, report
            case Reported(host) if host in self.state.hosts:
                ended = {record.worker for record in self.state.on(host) if record.state is WorkerState.ENDED}
                self._gone |= {r.worker for r in self._before.alive() if r.worker in ended}
            case _:
                pass

    def _check_effect(self, effect: Effect) -> None:
        assert self.finish is None or isinstance(effect, Refuse), "after the end there is nothing but refusals"
        match effect:
            case Launch():
                self._check_launch(effect)
            case Terminate(worker, grace_seconds):
                assert 0 <= grace_seconds <= self._find_most_grace()
                self._terminated.add(worker)
            case Publish():
                self._check_generation(effect)
            case Refuse(worker):
                self._refused.add(worker)
            case Depart():
                self._check_departure(effect)
            case Finish():
                self._check_end(effect)
                self.finish = effect
            case Notify(None):
                assert self._before.stops_at is None, "the job is stopped once"
            case Interrupt() | OfferResize() | Dismiss():
                assert self.policy.outlives_losses if isinstance(effect, Dismiss) else self.policy.is_elastic
                self._check_recovery(effect)
            case _:
                pass

    def _check_launch(self, launch: Launch) -> None:
        worker, assignment = launch.worker, launch.assignment
        record = self.state.workers[worker.slot]
        assert record.worker == worker, "only intended workers are launched"
        assert worker not in self._exited, "a worker that has ended is not launched again"
        assert self.state.outcome is None
        assert assignment.rank < assignment.size
        assert assignment.local_rank < assignment.local_size
        if not self.policy.outlives_losses:
            assert assignment == number_members(tuple(self.state.workers))[assignment.rank]
        elif worker not in self._launched:
            assert self.state.stops_at is None, "no worker is launched after a stop notice for the job"
            assert self.state.offers(worker.slot), "no worker is launched in a slot that is not offered"
            former = Worker(worker.slot, worker.incarnation - 1)
            is_gone = former in self._exited or former in self._gone or self._has_ended(former)
            assert worker.incarnation == 1 or is_gone, "a slot holds one worker at a time"
            self._check_room()
        self._launched.add(worker)
        if self.state.rounds > self._before.rounds:
            self._former = ()

    def _find_most_grace(self) -> float:
        restarts = self.policy.restarts
        graces = (restarts.grace_seconds, restarts.planned_grace_seconds) if self.policy.may_restart else ()
        return max(self.policy.grace_seconds, *graces, 0.0)

    def _has_ended(self, worker: Worker) -> bool:
        record = self._before.workers.get(worker.slot)
        return record is not None and record.worker == worker and record.state is WorkerState.ENDED

    def _check_room(self) -> None:
        offered = {Slot(host, index) for host, count in self.state.slots.items() for index in range(count)}
        alive = [r for r in self.state.alive() if r.state is not WorkerState.LEAVING and r.worker.slot in offered]
        assert len(alive) <= self.policy.max_size, "more workers than the job may have"

    def _check_departure(self, depart: Depart) -> None:
        assert self.state.ends_well(self._exited[depart.worker]), "only a worker that has ended well departs"
        assert self.state.generation is not None
        assert self.state.generation.number == depart.generation
        assert self.state.generation.members[depart.rank] == depart.worker
        assert depart.worker not in self._departed, "no worker departs twice"
        self._departed.add(depart.worker)

    def _check_recovery(self, effect: Interrupt | OfferResize | Dismiss) -> None:
        match effect:
            case Interrupt(generation):
                assert generation == self._published[-1].generation.number, "only the newest generation is interrupted"
                assert generation not in self._interrupted, "a generation is interrupted once"
                self._interrupted.add(generation)
            case OfferResize(generation, number, adds, removes):
                assert generation == self._published[-1].generation.number
                assert number == len(self._offers) + 1
                last = next((offer for offer in reversed(self._offers) if offer.generation == generation), None)
                assert adds or removes or (last is not None and (last.adds or last.removes)), "nothing to withdraw"
                self._offers.append(effect)
            case Dismiss(host):
                left = [record for record in self.state.alive() if record.worker.slot.host == host]
                assert all(record.worker not in self._launched for record in left), "a worker is left without an agent"
                self._gone |= {r.worker for r in self._before.workers.values() if r.worker.slot.host == host}

    def _check_generation(self, publish: Publish) -> None:
        number, members = publish.generation.number, publish.generation.members
        assert self.state.generation == publish.generation
        assert number == len(self._published) + 1, "each number once, and in order"
        least_size = self.state.least_size if self._former else self.policy.min_size
        assert least_size <= len(members) <= self.policy.max_size
        assert not (self._refused | self._exited.keys()) & set(members), "no refused or ended worker is in it"
        slots = [worker.slot for worker in members]
        assert publish.assignments == number_members(slots)
        hosts = [slot.host for slot in slots]
        assert len(set(hosts)) == 1 + sum(a != b for a, b in pairwise(hosts)), "not adjacent"
        former = self._former
        for worker in members:
            after, _ = self._reports[worker]
            assert after == number - 1 or worker not in former, "no worker is in it without having requested it"
        self._check_decision(publish, former)
        self._published.append(publish)
        self._former = members
        self.decisions[publish.decision.action] += 1

    def _check_decision(self, publish: Publish, former: tuple[Worker, ...]) -> None:
        decision, members = publish.decision, publish.generation.members
        survivors = [worker for worker in former if worker in members]
        if not (former and self.policy.is_elastic):
            assert decision.action is Action.BEGIN
        if not former:
            return
        needing = {worker for worker in survivors if self._needs_state(worker)}
        kept = [worker for worker in survivors if worker not in needing]
        assert [worker for worker in members if worker in kept] == kept, "a survivor keeps its place among survivors"
        if decision.action in {Action.RESIZE, Action.RESTORE}:
            assert members[0] in kept, "rank 0 holds the state that all others copy"
        reports = {former.index(worker): self._reports[worker][1] for worker in survivors}
        if decision.action is Action.RETRY:
            assert [former[rank] for rank in decision.survivors] == list(members), "a retry has only survivors"
            check_retry(len(former), reports, decision)
        if any(report.reason is JoinReason.RESTORE for report in reports.values()):
            assert decision.action is Action.RESTORE
        if decision.removed_only:
            assert set(members) <= set(former)
        if decision.action in {Action.RETRY, Action.RESTORE}:
            assert publish.generation.number - 1 in self._interrupted, "no worker continues that was not stopped"

    def _needs_state(self, worker: Worker) -> bool:
        """The worker has not got the state of the others, as far as is known."""
        _, report = self._reports[worker]
        return report.needs_state or (self._before.workers[worker.slot].needs_state and not report.has_state)

    def _check_end(self, finish: Finish) -> None:
        assert self.state.phase is Phase.FINISHED
        assert self.state.outcome == finish.outcome
        ended = {record.worker for record in self.state.list_workers(WorkerState.ENDED)}
        assert self._launched <= self._terminated | self._exited.keys() | ended | self._replaced(), "one was forgotten"
        if finish.outcome.cause is not Cause.SUCCEEDED:
            return
        was_unknown = self.policy.restarts.needs_world  # then some may have been replaced alone before
        if self.policy.is_elastic and (was_unknown or not self._rounds.is_world(self.state)):
            last = [self._exited.get(record.worker) for record in self.state.workers.values()]
            assert 0 in last, "no worker has succeeded"
        else:
            assert self._rounds.workers
            assert all(self._exited.get(worker) == 0 for worker in self._rounds.workers), "all have to succeed"

    def _replaced(self) -> set[Worker]:
        """The workers whose host was lost, and whose slot got another one."""
        intended = {record.worker.slot: record.worker.incarnation for record in self.state.workers.values()}
        return {worker for worker in self._launched if worker.incarnation < intended[worker.slot]}

    def _check_outcome(self, before: State, event: Event) -> None:
        outcome = self.state.outcome
        assert (outcome is None) == (self.state.phase not in {Phase.DRAINING, Phase.FINISHED})
        assert (self.finish is None) == (self.state.phase is not Phase.FINISHED)
        if before.outcome is not None:
            is_first = outcome == before.outcome
            is_surer = outcome is not None and outcome.certainty > before.outcome.certainty
            assert is_first or (is_surer and isinstance(event, Exited | Lost | Ticked)), "the first cause decides"
        elif outcome is not None:
            # An early success is no failure's end.
            is_known = outcome == before.first_failure and not is_early_success(event, before)
            is_known |= before.restart is not None and outcome == before.restart.outcome
            is_notice = outcome.cause is Cause.STOPPED and not isinstance(event, Stopped)
            explained = (explains_notice if is_notice else explains)(outcome, event, before, self.state)
            assert is_known or explained, f"{event}: {outcome}"
