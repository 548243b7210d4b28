"""Histories of jobs: what may happen next in one, chosen by Hypothesis or by chance."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from rendezvous.core.lifecycle import Phase, WorkerState
from rendezvous.core.messages import (
    Begun,
    Declared,
    Event,
    Exited,
    HostsChanged,
    Joined,
    Lost,
    Noticed,
    Reported,
    SequencerLost,
    SequencerOpened,
    Signalled,
    Stopped,
    Ticked,
    WorldOpened,
)
from rendezvous.core.model import Endpoint, Host, Policy, Recovery, Restarts, Slot, Worker
from rendezvous.core.outcome import Blame
from rendezvous.core.reports import JoinReason, Report
from rendezvous.core.state import State
from tests.rendezvous.core.checker import Checker
from tests.rendezvous.core.simulation import Simulation, cooperate

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]


def choose_join(state: State, choose: "Choose[Worker]") -> Event:
    """An expected worker asks for the next generation; with none left, any worker does."""
    expected = [r.worker for r in state.list_workers(WorkerState.INTENDED, WorkerState.MEMBER)]
    return Joined(choose(expected or [r.worker for r in state.workers.values()]), state.number)


def choose_report(state: State, choose: "Choose[Host]") -> Event:
    """An agent reports the workers that should run there."""
    if not state.hosts:
        return Ticked(state.now)
    host = choose([Host(name, len(slots)) for name, slots in state.hosts.items()]).name
    return Reported(host, tuple(r.worker for r in state.on(host) if r.state is not WorkerState.ENDED))


def choose_sequencer(state: State) -> Event:
    """The host of rank 0, or of the one that will be, opens the sequencer of the newest generation."""
    first = next(iter(state.workers.values())).worker
    return SequencerOpened(first.slot.host, state.number, Endpoint("10.0.0.1", 4711))


class RandomHistory:
    """One seeded history: likely events mostly, now and then one that cannot be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seed that can be repeated, not a secret
        self.checker = Checker(self.choose_policy(), careful=False)
        self.trouble = self.random.choice([0.0, 0.02, 0.1, 0.3])  # how often something fails
        self.leaving = self.random.choice([0.0, 0.1, 1.0, 8.0])  # how often a worker ends well early
        self.length = self.random.randint(20, 60)

    def choose_policy(self) -> Policy:
        """Static or elastic, of any size."""
        least = self.random.randint(1, 6)
        most = self.random.randint(least, 10)
        start, lease = (self.random.choice([2.0, 10.0, 40.0]) for _ in range(2))
        failures = self.random.choice([0, 0, 1, 2])
        return Policy(least, most, failures, start, lease, recovery=Recovery(elastic_timeout_seconds=20.0))

    def run(self) -> Checker:
        """Let it happen, to its end."""
        while self.checker.events.total() < self.length:
            self.checker.apply(self._choose())
        self.checker.end()
        return self.checker

    def _choose(self) -> Event:
        state, chance = self.checker.state, self.random
        if not state.workers or chance.random() < 0.01:
            return HostsChanged(tuple(Host(f"h{n}", chance.randint(1, 4)) for n in range(chance.randint(1, 5))))
        if chance.random() < 0.05:
            return self._choose_unlikely()
        if chance.random() < self.trouble / 4:
            return self._choose_trouble()
        likely: list[Callable[[], Event]] = [
            lambda: choose_report(state, chance.choice),
            lambda: Ticked(state.now + chance.choice([0.25, 0.25, 1.0, 5.0, 100.0])),
            lambda: choose_sequencer(state),
            lambda: Exited(self._choose_worker(), 0, has_left=chance.random() < 0.5),
            lambda: choose_join(state, chance.choice),
        ]
        leaving = 6 if state.phase is Phase.DRAINING else self.leaving
        (choice,) = chance.choices(likely, (3, 2, 1, leaving, 8))
        return choice()

    def _choose_trouble(self) -> Event:
        host = self.random.choice([*self.checker.state.hosts, "h0"])
        choices: list[Event] = [
            Exited(self._choose_worker(), self.random.choice([1, 3, -9, -12])),
            Exited(self._choose_worker(), 127, "the command was not found", cannot_start=True),
            Exited(self._choose_worker(), -9, "it was stopped"),
            Lost(host, "its order channel closed"),
            Stopped(130, "interrupted", immediately=self.random.random() < 0.5),
            Noticed(self.random.choice([None, host])),
            Signalled(host, self.random.choice([1, 2, 15])),
            Exited(self._choose_worker(), 75),
            Exited(self._choose_worker(), 1, blame=Blame("rank 0 was cut off", (0,))),
            SequencerLost(host, "it ended with SIGKILL (signal 9)"),
        ]
        return self.random.choice(choices)

    def _choose_unlikely(self) -> Event:
        state, worker = self.checker.state, self._choose_worker()
        stranger = Worker(Slot(self.random.choice(["h0", "z"]), self.random.randint(0, 5)), self.random.randint(1, 3))
        choices: list[Event] = [
            Joined(stranger, self.random.randint(0, 3)),
            Exited(stranger, 0),
            Joined(worker, self.random.randint(0, 3)),
            Reported(worker.slot.host, (worker, stranger)),
            Reported(worker.slot.host),
            Begun(worker.slot.host),
            SequencerOpened(worker.slot.host, self.random.randint(0, 3), Endpoint("10.0.0.1", 4711)),
            Declared(self.random.choice([stranger, worker]), needs_state=self.random.random() < 0.5),
            Joined(worker, state.number, Report(self.random.choice(list(JoinReason)), has_state=True)),
            Lost("z", "it never was"),
            Ticked(state.now - 1),
            Stopped(143, "terminated"),
        ]
        return self.random.choice(choices)

    def _choose_worker(self) -> Worker:
        return self.random.choice(list(self.checker.state.workers.values())).worker


class SimulatedHistory:
    """One seeded history of an elastic job with truthful agents and workers; now and then a stranger's event."""

    returncodes: tuple[int, ...] = (1, -9, -9, -12)  # of workers that fail
    make_simulation: type[Simulation] = Simulation

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(f"elastic {seed}")  # noqa: S311 - a seed that can be repeated, not a secret
        self.checker = Checker(self.choose_policy(), careful=False)
        obstacles = chance.choice([0.0, 0.3, 0.8])
        self.simulation = self.make_simulation(self.checker, chance, obstacles, chance.random() < 0.8)
        self.prepare()
        self.trouble = chance.choice([0.02, 0.1, 0.2])
        self.length = chance.randint(40, 160)
        self.hosts = [Host(f"h{number}", chance.randint(1, 3)) for number in range(chance.randint(1, 5))]

    def choose_policy(self) -> Policy:
        """Elastic, of any size."""
        chance = self.random
        least = chance.randint(1, 4)
        start = chance.randint(least, 6)
        recovery = Recovery(
            reset_limit=chance.choice([None, None, None, 0, 2, 5]),
            elastic_timeout_seconds=chance.choice([5.0, 20.0]),
            cooldown_seconds=chance.choice([(0.0, 0.0), (1.0, 4.0), (10.0, 100.0)]),
            failures_per_slot=chance.choice([1, 2, 3]),
            forgiveness_seconds=chance.choice([3.0, 600.0]),
            gathering_seconds=chance.choice([0.0, 5.0]),
        )
        return Policy.elastic(
            least,
            chance.choice([None, chance.randint(start, 9)]),
            start,
            recovery=recovery,
            start_timeout_seconds=chance.choice([2.0, 20.0]),
            lease_seconds=chance.choice([2.0, 5.0]),
            grace_seconds=chance.choice([0.0, 5.0]),
        )

    def prepare(self) -> None:
        """Choose what else there is to choose of the simulation."""

    def run(self) -> Checker:
        """Let it happen, to its end."""
        while self.checker.events.total() < self.length and self.checker.finish is None:
            self.happen()
        ending = self.random.random()
        if ending < 0.3:
            starve(self.simulation)
        elif ending < 0.7:
            cooperate(self.simulation)
        else:
            for _ in range(5):
                self.simulation.stumble()
        if ending < 0.5:
            end_well(self.simulation)
        self.checker.end()
        return self.checker

    def happen(self) -> None:
        """Something likely, or something that fails."""
        simulation, chance, state = self.simulation, self.random, self.checker.state
        if not state.slots or chance.random() < 0.03:
            return simulation.apply(HostsChanged(tuple(self.list_hosts())))
        if chance.random() < self.trouble / 3:
            return self._fail()
        if chance.random() < 0.02 and state.workers:
            return simulation.apply(self._choose_strange())
        actions: dict[Callable[[], None], float] = {
            self._join_some: 8,
            self._declare_some: 3,
            simulation.train: 3,
            simulation.resize: 2,
            simulation.end_terminated: 2,
            lambda: simulation.pass_time(0.25): 2,
            lambda: simulation.apply(Ticked(state.now + chance.choice([0.25, 0.5, 30.0]))): 0.7,
            lambda: simulation.apply(choose_sequencer(state)) if state.workers else None: 0.3,
            simulation.begin_again: 0.1,
        }
        (action,) = chance.choices(list(actions), list(actions.values()))
        return action()

    def list_hosts(self) -> list[Host]:
        """Some of them, in any order."""
        count = self.random.randint(min(1, len(self.checker.state.slots)), len(self.hosts))
        return self.random.sample(self.hosts, count)

    def _fail(self) -> None:
        simulation, chance = self.simulation, self.random
        workers, hosts = list(simulation.alive), list(self.checker.state.hosts)
        what = chance.random()
        if what < 0.6 and workers:
            simulation.end(chance.choice(workers), chance.choice(self.returncodes))
        elif what < 0.7 and workers:
            simulation.end(chance.choice(workers), 127, "the command was not found", cannot_start=True)
        elif what < 0.72 and workers:
            simulation.end(chance.choice(workers), -9, "it was stopped")
        elif what < 0.75 and workers:
            simulation.end(chance.choice(workers), 0)
        elif what < 0.85 and hosts:
            simulation.lose(chance.choice(hosts))
        elif what < 0.91:
            simulation.trouble()
        elif what < 0.96 and hosts:
            event = Noticed if chance.random() < 0.6 else partial(Signalled, signal=15)
            simulation.apply(event(chance.choice(hosts)))
        elif what < 0.97:
            simulation.apply(Noticed(None))
        elif what < 0.985 and workers:
            simulation.end(chance.choice(workers), 75)
        else:
            simulation.apply(Stopped(130, "interrupted", immediately=chance.random() < 0.5))

    def _join_some(self) -> None:
        for each in self.random.sample(list(self.simulation.alive.values()), min(3, len(self.simulation.alive))):
            if each.worker in self.simulation.alive:
                self.simulation.join(each)

    def _declare_some(self) -> None:
        for each in self.random.sample(list(self.simulation.alive.values()), min(3, len(self.simulation.alive))):
            self.simulation.declare(each)

    def _choose_strange(self) -> Event:
        chance, state = self.random, self.checker.state
        worker = chance.choice(list(state.workers.values())).worker
        stranger = Worker(Slot(chance.choice(["h0", "z"]), chance.randint(0, 3)), chance.randint(1, 3))
        choices: list[Event] = [
            Joined(stranger, chance.randint(0, 3)),
            Exited(stranger, 1),
            Reported("z", (stranger,)),
            Begun(worker.slot.host),
            Begun("z"),
            Joined(Worker(worker.slot, max(1, worker.incarnation - 1)), max(0, state.number - 1)),
            Lost("z", "it never was"),
            Ticked(state.now - 1),
        ]
        return chance.choice(choices)


class RandomRestartHistory(RandomHistory):
    """One seeded history of a job of a fixed size in which anything may happen."""

    def choose_policy(self) -> Policy:
        """All workers are started again, once, some times, or for ever."""
        least = self.random.randint(1, 6)
        start, lease = (self.random.choice([2.0, 10.0, 40.0]) for _ in range(2))
        recovery = replace(super().choose_policy().recovery, elastic_timeout_seconds=20.0)
        restarts = Restarts(self.random.choice([1, 3, None]))
        return Policy(least, least, 0, start, lease, recovery=recovery, restarts=restarts)


class SimulatedRestartHistory(SimulatedHistory):
    """One seeded history of a job with truthful agents and workers, though some are silent, or cannot be killed.

    Its program calls `init()`, or never does; it recovers in place first, or never does; its size changes, or does not.
    """

    returncodes = (1, 1, 3, -9, -9, -9, -6, -11, 137, -12)

    def choose_policy(self) -> Policy:
        """All workers are started again, once, some times, or for ever."""
        chance = self.random
        policy = super().choose_policy()
        restarts = Restarts(
            limit=chance.choice([1, 3, None]),
            grace_seconds=chance.choice([0.0, 2.0]),
            planned_grace_seconds=chance.choice([2.0, 30.0]),
            grow_after_seconds=chance.choice([None, 3.0]),
            has_checkpoint=chance.random() < 0.5,
        )
        policy = replace(policy, restarts=restarts)
        if chance.random() < 0.5:
            policy = replace(policy, failures_allowed=0)
        elif chance.random() < 0.5:
            limit = chance.choice([restarts.limit, 0])
            policy = replace(policy, restarts=replace(restarts, needs_world=True, limit=limit))
        if chance.random() < 0.4:
            size = policy.slots_to_start
            policy = replace(policy, min_size=size, max_size=size, start_size=size)
        return policy

    def prepare(self) -> None:
        """Choose what kind of program it is, and how badly the hosts behave."""
        chance, simulation = self.random, self.simulation
        simulation.joins = chance.random() < 0.5
        simulation.has_states &= simulation.joins and self.checker.policy.is_elastic
        simulation.stuck = chance.choice([0.0, 0.0, 0.05])
        simulation.unheard = chance.choice([0.0, 0.0, 0.2])

    def happen(self) -> None:
        """What an elastic job has, and what is worst where all are to be started again."""
        chance, simulation, state = self.random, self.simulation, self.checker.state
        if not state.workers or chance.random() > 0.1:
            return super().happen()
        hosts = list(state.hosts)
        what = chance.random()
        if state.restart is not None and what < 0.5:
            if what < 0.1 and hosts:
                return simulation.lose(chance.choice(hosts))
            if what < 0.2 and hosts:
                return simulation.apply(Noticed(chance.choice(hosts)))
            if what < 0.22:
                return simulation.apply(Noticed(None))
            if what < 0.3 and hosts:
                return simulation.apply(Signalled(chance.choice(hosts), 15))
            return simulation.apply(HostsChanged(tuple(chance.sample(self.hosts, chance.randint(1, len(self.hosts))))))
        if what < 0.2 and hosts:
            return simulation.apply(WorldOpened(chance.choice(hosts)))
        if what < 0.6 and hosts:
            return simulation.cut.add(chance.choice(hosts))
        if what < 0.9:
            return simulation.fail_together()
        return self.pass_much_time()

    def pass_much_time(self) -> None:
        """So much that a round that ends is none that ended immediately."""
        for _ in range(12):
            self.simulation.pass_time(self.checker.policy.lease_seconds / 4)

    def list_hosts(self) -> list[Host]:
        """Mostly enough of them, some with fewer slots than before."""
        if self.random.random() < 0.3:
            return super().list_hosts()
        hosts = [replace(each, slots=self.random.randint(1, each.slots)) for each in self.hosts]
        return [*hosts, Host("h9", self.checker.policy.slots_to_start)]


def starve(simulation: Simulation) -> None:
    """All members but one are lost, and none comes in their place."""
    members = simulation.list_members()
    state = simulation.checker.state
    if state.phase is not Phase.RUNNING or len(members) < 2 or not all(each.has_state for each in members):
        return
    last = simulation.chance.choice(members)
    for each in members:
        if each is not last:
            simulation.end(each.worker, -9)
    deadline = state.now + state.policy.recovery.elastic_timeout_seconds + state.policy.report_seconds
    while simulation.checker.state.phase is Phase.REFORMING and simulation.checker.state.now < deadline:
        if last.worker in simulation.alive:
            simulation.join(last)
        simulation.pass_time(max(state.policy.lease_seconds / 4, 0.5))


def end_well(simulation: Simulation) -> None:
    """All workers have trained enough."""
    for worker in list(simulation.alive):
        simulation.end(worker, 0)


KINDS = (
    RandomHistory,
    SimulatedHistory,
    SimulatedRestartHistory,
    SimulatedHistory,
    RandomRestartHistory,
    SimulatedRestartHistory,
)
