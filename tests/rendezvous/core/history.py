"""Histories of jobs: what may happen next in one, chosen by Hypothesis or by chance."""

import random
from collections.abc import Callable, Sequence
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
    SequencerOpened,
    Signalled,
    Stopped,
    Ticked,
)
from rendezvous.core.model import Endpoint, Host, Policy, Recovery, Slot, Worker
from rendezvous.core.reports import JoinReason, Report
from rendezvous.core.state import State
from tests.rendezvous.core.futures import cooperate, end_well, starve
from tests.rendezvous.core.witness import Witness
from tests.rendezvous.core.world import World

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]


def choose_join(state: State, choose: "Choose[Worker]") -> Event:
    """Somebody who is expected asks for the next generation; with nobody left, anybody does."""
    expected = [r.worker for r in state.list_workers(WorkerState.INTENDED, WorkerState.MEMBER)]
    return Joined(choose(expected or [r.worker for r in state.workers.values()]), state.number)


def choose_report(state: State, choose: "Choose[Host]") -> Event:
    """An agent reports the workers that should run there."""
    if not state.hosts:
        return Ticked(state.now)
    host = choose([Host(name, len(slots)) for name, slots in state.hosts.items()]).name
    return Reported(host, tuple(r.worker for r in state.on(host) if r.state is not WorkerState.ENDED))


def choose_sequencer(state: State) -> Event:
    """The host of rank 0, or of who will be, opens the sequencer of the newest generation."""
    first = next(iter(state.workers.values())).worker
    return SequencerOpened(first.slot.host, state.number, Endpoint("10.0.0.1", 4711))


class Chance:
    """One seeded history: likely events mostly, now and then one that cannot be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seed that can be repeated, not a secret
        self.witness = Witness(self.choose_policy(), careful=False)
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

    def run(self) -> Witness:
        """Let it happen, to its end."""
        while self.witness.events.total() < self.length:
            self.witness.tell(self._choose())
        self.witness.end()
        return self.witness

    def _choose(self) -> Event:
        state, chance = self.witness.state, self.random
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
            lambda: Exited(self._anybody(), 0, has_left=chance.random() < 0.5),
            lambda: choose_join(state, chance.choice),
        ]
        leaving = 6 if state.phase is Phase.DRAINING else self.leaving
        (choice,) = chance.choices(likely, (3, 2, 1, leaving, 8))
        return choice()

    def _choose_trouble(self) -> Event:
        host = self.random.choice([*self.witness.state.hosts, "h0"])
        choices: list[Event] = [
            Exited(self._anybody(), self.random.choice([1, 3, -9, -12])),
            Exited(self._anybody(), 127, "the command was not found", cannot_start=True),
            Exited(self._anybody(), -9, "it was stopped"),
            Lost(host, "its order channel closed"),
            Stopped(130, "interrupted", immediately=self.random.random() < 0.5),
            Noticed(self.random.choice([None, host])),
            Signalled(host, self.random.choice([1, 2, 15])),
            Exited(self._anybody(), 75),
        ]
        return self.random.choice(choices)

    def _choose_unlikely(self) -> Event:
        state, somebody = self.witness.state, self._anybody()
        stranger = Worker(Slot(self.random.choice(["h0", "z"]), self.random.randint(0, 5)), self.random.randint(1, 3))
        choices: list[Event] = [
            Joined(stranger, self.random.randint(0, 3)),
            Exited(stranger, 0),
            Joined(somebody, self.random.randint(0, 3)),
            Reported(somebody.slot.host, (somebody, stranger)),
            Reported(somebody.slot.host),
            Begun(somebody.slot.host),
            SequencerOpened(somebody.slot.host, self.random.randint(0, 3), Endpoint("10.0.0.1", 4711)),
            Declared(self.random.choice([stranger, somebody]), needs_state=self.random.random() < 0.5),
            Joined(somebody, state.number, Report(self.random.choice(list(JoinReason)), has_state=True)),
            Lost("z", "it never was"),
            Ticked(state.now - 1),
            Stopped(143, "terminated"),
        ]
        return self.random.choice(choices)

    def _anybody(self) -> Worker:
        return self.random.choice(list(self.witness.state.workers.values())).worker


class ElasticChance:
    """One seeded history of an elastic job whose agents and workers tell the truth; now and then a stranger's event."""

    returncodes: tuple[int, ...] = (1, -9, -9, -12)  # of workers that fail

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(f"elastic {seed}")  # noqa: S311 - a seed that can be repeated, not a secret
        self.witness = Witness(self.choose_policy(), careful=False)
        self.world = World(self.witness, chance, chance.choice([0.0, 0.3, 0.8]), chance.random() < 0.8)
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
        """Choose what else there is to choose of the world."""

    def run(self) -> Witness:
        """Let it happen, to its end."""
        while self.witness.events.total() < self.length and self.witness.finish is None:
            self.happen()
        ending = self.random.random()
        if ending < 0.3:
            starve(self.world)
        elif ending < 0.7:
            cooperate(self.world)
        else:
            for _ in range(5):
                self.world.stumble()
        if ending < 0.5:
            end_well(self.world)
        self.witness.end()
        return self.witness

    def happen(self) -> None:
        """Something likely, or something that fails."""
        world, chance, state = self.world, self.random, self.witness.state
        if not state.slots or chance.random() < 0.03:
            return world.tell(HostsChanged(tuple(self.list_hosts())))
        if chance.random() < self.trouble / 3:
            return self._fail()
        if chance.random() < 0.02 and state.workers:
            return world.tell(self._choose_strange())
        actions: dict[Callable[[], None], float] = {
            self._join_some: 8,
            self._declare_some: 3,
            world.train: 3,
            world.resize: 2,
            world.end_the_told: 2,
            lambda: world.pass_time(0.25): 2,
            lambda: world.tell(Ticked(state.now + chance.choice([0.25, 0.5, 30.0]))): 0.7,
            lambda: world.tell(choose_sequencer(state)) if state.workers else None: 0.3,
            world.begin_again: 0.1,
        }
        (action,) = chance.choices(list(actions), list(actions.values()))
        return action()

    def list_hosts(self) -> list[Host]:
        """Some of them, in any order."""
        count = self.random.randint(min(1, len(self.witness.state.slots)), len(self.hosts))
        return self.random.sample(self.hosts, count)

    def _fail(self) -> None:
        world, chance = self.world, self.random
        workers, hosts = list(world.alive), list(self.witness.state.hosts)
        what = chance.random()
        if what < 0.6 and workers:
            world.end(chance.choice(workers), chance.choice(self.returncodes))
        elif what < 0.7 and workers:
            world.end(chance.choice(workers), 127, "the command was not found", cannot_start=True)
        elif what < 0.72 and workers:
            world.end(chance.choice(workers), -9, "it was stopped")
        elif what < 0.75 and workers:
            world.end(chance.choice(workers), 0)
        elif what < 0.85 and hosts:
            world.lose(chance.choice(hosts))
        elif what < 0.91:
            world.trouble()
        elif what < 0.96 and hosts:
            event = Noticed if chance.random() < 0.6 else partial(Signalled, signal=15)
            world.tell(event(chance.choice(hosts)))
        elif what < 0.97:
            world.tell(Noticed(None))
        elif what < 0.985 and workers:
            world.end(chance.choice(workers), 75)
        else:
            world.tell(Stopped(130, "interrupted", immediately=chance.random() < 0.5))

    def _join_some(self) -> None:
        for each in self.random.sample(list(self.world.alive.values()), min(3, len(self.world.alive))):
            if each.worker in self.world.alive:
                self.world.join(each)

    def _declare_some(self) -> None:
        for each in self.random.sample(list(self.world.alive.values()), min(3, len(self.world.alive))):
            self.world.declare(each)

    def _choose_strange(self) -> Event:
        chance, state = self.random, self.witness.state
        somebody = chance.choice(list(state.workers.values())).worker
        stranger = Worker(Slot(chance.choice(["h0", "z"]), chance.randint(0, 3)), chance.randint(1, 3))
        choices: list[Event] = [
            Joined(stranger, chance.randint(0, 3)),
            Exited(stranger, 1),
            Reported("z", (stranger,)),
            Begun(somebody.slot.host),
            Begun("z"),
            Joined(Worker(somebody.slot, max(1, somebody.incarnation - 1)), max(0, state.number - 1)),
            Lost("z", "it never was"),
            Ticked(state.now - 1),
        ]
        return chance.choice(choices)
