"""A simulated elastic job: agents that follow orders, workers that train and report the truth.

All workers of a generation go through the same operations, one by one: something eager, a barrier, a commit round, and
so on. Each has done so many, and may have asked for the next; none has done what another has not requested.
"""

import random
from dataclasses import dataclass, field, replace

from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import (
    Declared,
    Dismiss,
    Effect,
    Event,
    Exited,
    HostsChanged,
    Interrupt,
    Joined,
    Launch,
    Lost,
    OfferResize,
    Publish,
    Refuse,
    Reported,
    Terminate,
    Ticked,
)
from rendezvous.core.model import Host, Worker
from rendezvous.core.reports import (
    Action,
    CompletedOperation,
    Done,
    JoinReason,
    PendingOperation,
    RecoveryDecision,
    Report,
)
from rendezvous.core.rounds import MOST_PAUSE_SECONDS
from tests.rendezvous.core.checker import Checker

KINDS = ("allreduce.x", "barrier.e", "commit.1")


@dataclass
class Trainee:
    """One worker as it is.

    generation: the last one it was a member of; rank and size: its own in it. joined: it waits for a newer one.
    done: how many operations it has done since the function began, and base: how many before this generation.
    is_terminated: the worker is ordered to end. is_stuck: it cannot be killed.
    """

    worker: Worker
    generation: int = 0
    rank: int = 0
    size: int = 0
    joined: bool = False
    has_state: bool = False
    needs_state: bool = False
    is_connected: bool = False
    done: int = 0
    base: int = 0
    pending: bool = False
    is_terminated: bool = False
    is_stuck: bool = False


@dataclass
class Simulation:
    """What there is outside the core.

    obstacles: how often an eager operation cannot be repeated. stuck: how often a worker cannot be killed.
    unheard: how often the agent of a new host never reports.
    cut: the hosts that do not report any more, so that the ends of their workers are unknown.
    """

    checker: Checker
    chance: random.Random
    obstacles: float = 0.0
    has_states: bool = True  # the script is an elastic one
    alive: dict[Worker, Trainee] = field(default_factory=dict)
    interrupted: int = 0
    offered: OfferResize | None = None
    members: tuple[Worker, ...] = ()
    generation: int = 0
    stuck: float = 0.0
    unheard: float = 0.0
    cut: set[str] = field(default_factory=set)
    joins: bool = True  # the program calls `init()`

    def apply(self, event: Event) -> None:
        """Let an event happen, and what follows from it."""
        for effect in self.checker.apply(event) or ():
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        """What follows from an effect."""
        match effect:
            case Launch(worker):
                self.launch(worker)
            case Terminate(worker):
                if worker in self.alive:
                    self.alive[worker].is_terminated = True
            case Refuse(worker):
                if worker in self.alive:
                    self.alive[worker].joined = False
            case Interrupt(generation):
                self.interrupted = generation
            case OfferResize():
                self.offered = effect
            case Publish():
                self.publish(effect)
            case Dismiss(host):
                self.alive = {worker: each for worker, each in self.alive.items() if worker.slot.host != host}
                self.cut.discard(host)
            case _:
                pass

    def launch(self, worker: Worker) -> None:
        """An agent starts a worker, unless it has."""
        host = worker.slot.host
        if worker in self.alive:
            return
        if self.checker.state.last_heard.get(host) is None and self.chance.random() < self.unheard:
            self.cut.add(host)
        self.alive[worker] = Trainee(worker, is_stuck=self.chance.random() < self.stuck)

    def publish(self, publish: Publish) -> None:
        """Every member takes part immediately, except that it may not be connected yet."""
        decision, self.members = publish.decision, publish.generation.members
        self.generation, self.offered = publish.generation.number, None
        for rank, worker in enumerate(self.members):
            each = self.alive.get(worker)
            if each is None:
                continue  # the worker has ended, and the core does not know yet
            is_new = each.generation != self.generation - 1
            self._apply(each, decision, is_new=is_new)
            each.generation, each.rank, each.size = self.generation, rank, len(self.members)
            each.joined = each.is_connected = False
        if decision.action is Action.RETRY:
            done = {each.done for worker in self.members if (each := self.alive.get(worker)) is not None}
            assert len(done) <= 1, "after a retry all stand at the same place"

    def _apply(self, each: Trainee, decision: RecoveryDecision, *, is_new: bool) -> None:
        if decision.action is not Action.RETRY:
            each.done = each.base = 0
            each.pending = False
            each.needs_state = is_new and decision.action in {Action.RESIZE, Action.RESTORE}
            return
        if each.pending:
            called = [done for done in decision.done if replace(done, response=b"") == self._describe_done(each)]
            if called:
                assert called[0].response in {b"", _response(each.done)}, "it was the response of another"
                each.done += 1
                each.pending = False
        each.base = each.done

    def _describe_completed(self, position: int, each: Trainee, ranks: tuple[int, ...]) -> CompletedOperation:
        completed = CompletedOperation(ranks, *self._locate(position, each))
        knows = completed.name == KINDS[0] and self.chance.random() < 0.5
        return replace(completed, response=_response(position)) if knows else completed

    def _describe_done(self, each: Trainee) -> Done:
        kind, number = self._name(each.done)
        return Done(tuple(range(each.size)), number, "" if number else kind)

    def _name(self, position: int) -> tuple[str, int]:
        kind = KINDS[position % len(KINDS)]
        return kind, position // len(KINDS) + 1 if kind.startswith("commit") else 0

    def train(self) -> None:
        """Let the newest generation get on, if it lives; none is ahead of what all have requested."""
        trainees = self.list_members()
        if self.interrupted == self.generation or not trainees or any(each.joined for each in trainees):
            return
        if len(trainees) < len(self.members):
            for each in trainees:  # a member is dead: nothing more is done, but all come to the next operation
                each.is_connected = True
                each.pending = each.pending or self.chance.random() < 0.5
            return
        steps = self.chance.choice([0, 1, 1, 2, 3, 5])
        place = max(each.done for each in trainees) + steps
        ahead = self.chance.random() < 0.4
        for each in trainees:
            each.is_connected = True
            each.needs_state = each.needs_state and place < 1
            each.done = place
            each.pending = ahead or self.chance.random() < 0.5
        if ahead:  # some have done it already
            for each in trainees:
                if self.chance.random() < 0.5:
                    each.done, each.pending = place + 1, self.chance.random() < 0.5

    def report_of(self, each: Trainee, join_reason: JoinReason, trouble: str = "") -> Report:
        """The truth about this worker."""
        if join_reason is JoinReason.BEGIN:
            return Report()
        if not each.is_connected:
            return Report(JoinReason.FORM, has_state=each.has_state, needs_state=each.needs_state)
        ranks = tuple(range(each.size))
        completed = [self._describe_completed(position, each, ranks) for position in range(each.base, each.done)]
        pending = (self._describe_pending(each, ranks),) if each.pending and join_reason is JoinReason.CONTINUE else ()
        heard = each.done - each.base - 1
        if pending and pending[0].index is not None:
            heard = pending[0].index
        return Report(join_reason, trouble, each.has_state, pending, tuple(completed), heard, 0, each.needs_state)

    def _locate(self, position: int, each: Trainee) -> tuple[str, int, int]:
        kind, number = self._name(position)
        return kind, position - each.base, number

    def _describe_pending(self, each: Trainee, ranks: tuple[int, ...]) -> PendingOperation:
        kind, number = self._name(each.done)
        is_released = all(other.pending or other.done > each.done for other in self.list_members())
        is_heard = is_released and self.chance.random() < 0.5
        is_stuck = not number and kind.startswith("allreduce") and self.chance.random() < self.obstacles
        return PendingOperation(
            ranks=ranks,
            name=kind,
            title=kind,
            number=number,
            index=each.done - each.base if is_heard else None,
            obstacle="it was changed in place" if is_stuck else "",
        )

    def list_members(self) -> list[Trainee]:
        """The members of the newest generation that live."""
        return [self.alive[worker] for worker in self.members if worker in self.alive]

    def join(self, each: Trainee) -> None:
        """What this worker has to say now, if it has anything to say."""
        if not self.joins:
            return
        if each.generation != self.generation or not self.generation:
            if not each.joined:
                each.joined = True
                self.apply(Joined(each.worker, each.generation))
        elif self.interrupted == self.generation and not each.joined:
            each.joined = True
            join_reason = JoinReason.RESTORE if each.has_state and self.chance.random() < 0.1 else JoinReason.CONTINUE
            self.apply(Joined(each.worker, each.generation, self.report_of(each, join_reason)))

    def resize(self) -> None:
        """All members have come to a commit, and have seen the offer at it."""
        members = self.list_members()
        if self.offered is None or self.interrupted == self.generation or len(members) < len(self.members):
            return
        if any(each.joined for each in members) or not all(each.has_state for each in members):
            return
        place = max(each.done for each in members) // len(KINDS) * len(KINDS) + len(KINDS)
        for each in members:
            each.done, each.pending, each.needs_state, each.is_connected = place, False, False, True
        for each in self.chance.sample(members, self.chance.randint(1, len(members))):
            if self.interrupted != self.generation and self.generation == each.generation and not each.joined:
                each.joined = True
                self.apply(Joined(each.worker, each.generation, self.report_of(each, JoinReason.RESIZE)))

    def begin_again(self) -> None:
        """All call `shutdown()` and `init()` again; some are slow."""
        members = self.list_members()
        if self.interrupted == self.generation or any(each.joined for each in members):
            return
        for each in self.chance.sample(members, self.chance.randint(0, len(members))):
            if self.generation == each.generation and self.interrupted != self.generation:
                each.joined = True
                self.apply(Joined(each.worker, each.generation))

    def declare(self, each: Trainee) -> None:
        """Enter the function that begins again, or have got the others' state in it."""
        if each.generation and each.generation == self.generation and self.has_states:
            if each.has_state:
                each.needs_state = False
            each.has_state = True
            self.apply(Declared(each.worker, each.needs_state))

    def trouble(self) -> None:
        """A member notices by itself that the generation cannot continue."""
        members = [each for each in self.list_members() if not each.joined]
        if members and self.interrupted != self.generation:
            each = self.chance.choice(members)
            each.joined = True
            reason = self.chance.choice(["the sequencer has gone", "a connection broke"])
            join_reason = JoinReason.RESTORE if each.has_state and self.chance.random() < 0.4 else JoinReason.CONTINUE
            self.apply(Joined(each.worker, each.generation, self.report_of(each, join_reason, reason)))

    def stumble(self) -> None:
        """One member's function fails as it has failed before; all the others hear of it and report."""
        members = self.list_members()
        if not members or self.interrupted == self.generation or any(each.joined for each in members):
            return
        members[0].is_connected = members[0].has_state = members[0].joined = True
        report = self.report_of(members[0], JoinReason.RESTORE, "the shapes differ")
        self.apply(Joined(members[0].worker, members[0].generation, report))
        for each in self.list_members():
            self.join(each)

    def end(
        self,
        worker: Worker,
        returncode: int,
        error: str | None = None,
        *,
        cannot_start: bool = False,
        was_stopped: bool = False,
    ) -> None:
        """A worker has ended; a host that is cut off does not report it."""
        if worker.slot.host not in self.cut and self.alive.pop(worker, None) is not None:
            has_left = was_stopped and self.chance.random() < 0.1
            self.apply(Exited(worker, returncode, error, cannot_start, has_left, was_stopped))

    def end_terminated(self) -> None:
        """Terminated workers end, if they can be killed; some had ended by themselves before."""
        for each in list(self.alive.values()):
            if each.is_terminated and not each.is_stuck:
                self.end(each.worker, self.chance.choice([-15, -9, 0, 1]), was_stopped=self.chance.random() < 0.7)

    def fail_together(self) -> None:
        """A worker is killed, and its peers fail because of that; their agents report in any order."""
        workers = list(self.alive)
        for worker in self.chance.sample(workers, self.chance.randint(0, len(workers))):
            self.end(worker, self.chance.choice([-9, -6, 1, 1]))

    def report(self, host: str) -> None:
        """An agent reports which workers it has; it starts none without an order."""
        if host not in self.cut:
            self.apply(Reported(host, tuple(worker for worker in self.alive if worker.slot.host == host)))

    def lose(self, host: str) -> None:
        """A host is gone, and all its processes."""
        self.alive = {worker: each for worker, each in self.alive.items() if worker.slot.host != host}
        self.apply(Lost(host, "its order channel closed"))

    def pass_time(self, seconds: float) -> None:
        """Agents report in time, so that nothing is lost."""
        self.apply(Ticked(self.checker.state.now + seconds))
        for host in list(self.checker.state.hosts):
            if host in self.checker.state.hosts:
                self.report(host)


def _response(position: int) -> bytes:
    """What all that have done the operation at this place have heard."""
    return str(position).encode()


def cooperate(simulation: Simulation) -> None:
    """From now on nothing fails, and every worker does what is expected: the job runs with all, or has ended."""
    simulation.stuck = simulation.unheard = 0.0
    simulation.apply(HostsChanged((Host("h0", 4), Host("fresh", simulation.checker.policy.min_size))))
    least = max(simulation.checker.policy.lease_seconds / 4, 0.5)
    recovery = simulation.checker.policy.recovery
    limit = 2 * (recovery.elastic_timeout_seconds + simulation.checker.policy.start_timeout_seconds)
    restarts = simulation.checker.policy.restarts
    limit += 2 * (restarts.planned_grace_seconds + MOST_PAUSE_SECONDS + 3 * least) if restarts.limit != 0 else 0.0
    last = (
        simulation.checker.state.now + limit + simulation.checker.policy.report_seconds + recovery.cooldown_seconds[1]
    )
    while not _is_settled(simulation):
        assert simulation.checker.state.now <= last, "no worker fails, and yet the job neither runs nor ends"
        simulation.pass_time(least)
        simulation.end_terminated()
        for each in list(simulation.alive.values()):
            if simulation.checker.state.refusal is not None:
                simulation.end(each.worker, 0)  # a worker has exited with 0, so the others do
            elif each.worker in simulation.alive and not each.is_terminated:
                simulation.join(each)
                simulation.declare(each)
        simulation.resize()
        if simulation.checker.state.phase is Phase.FORMING:
            _join_them(simulation)


def _join_them(simulation: Simulation) -> None:
    """Some have begun again: the others do likewise."""
    records = simulation.checker.state.workers.values()
    reasons = {record.report.reason for record in records if record.report is not None}
    for each in simulation.list_members():
        if not each.joined and each.generation == simulation.generation and reasons and _is_forming(simulation):
            each.joined = True
            report = simulation.report_of(each, reasons.copy().pop())
            simulation.apply(Joined(each.worker, each.generation, report))


def _is_forming(simulation: Simulation) -> bool:
    return simulation.checker.state.phase is Phase.FORMING and simulation.interrupted != simulation.generation


def _is_settled(simulation: Simulation) -> bool:
    state = simulation.checker.state
    if state.phase is Phase.FINISHED:
        return True
    if not simulation.joins and not state.number:
        return state.phase is Phase.FORMING and {record.worker for record in state.alive()} == simulation.alive.keys()
    is_alone = not simulation.has_states  # a script that is none of an elastic job takes no worker in
    stuck = {each.worker for each in simulation.alive.values() if each.is_stuck and each.is_terminated}
    return state.phase is Phase.RUNNING and all(
        record.state == "member" or (is_alone and record.state == "ready") or record.worker in stuck
        for record in state.alive()
    )
