"""Histories of jobs: what may happen next in one, chosen by Hypothesis or by chance."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from rendezvous.core.events import (
    Begun,
    Event,
    Exited,
    HostsChanged,
    Joined,
    Lost,
    Reported,
    Stopped,
    StoreOpened,
    Ticked,
)
from rendezvous.core.model import Endpoint, Host, Policy, Slot, Worker
from rendezvous.core.state import Phase, Standing, State
from tests.rendezvous.core.witness import Witness

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]


def choose_join(state: State, choose: "Choose[Worker]") -> Event:
    """Somebody who is expected asks for the next generation; with nobody left, anybody does."""
    expected = [r.worker for r in state.standing(Standing.INTENDED, Standing.MEMBER)]
    return Joined(choose(expected or [r.worker for r in state.workers.values()]), state.number)


def choose_report(state: State, choose: "Choose[Host]") -> Event:
    """An agent reports the workers that should run there."""
    host = choose([Host(name, len(slots)) for name, slots in state.hosts.items()]).name
    return Reported(host, tuple(r.worker for r in state.on(host) if r.standing is not Standing.ENDED))


def choose_store(state: State) -> Event:
    """Rank 0, or who will be, opens the store of the newest generation."""
    first = next(iter(state.workers.values())).worker
    return StoreOpened(first, state.number, Endpoint("10.0.0.1", 4711))


class Chance:
    """One seeded history: likely events mostly, now and then one that cannot be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seed that can be repeated, not a secret
        least = self.random.randint(1, 6)
        most = self.random.randint(least, 10)
        limits = [self.random.choice([2.0, 10.0, 40.0]) for _ in range(2)]
        self.witness = Witness(Policy(least, most, self.random.choice([0, 0, 1, 2]), *limits), careful=False)
        self.trouble = self.random.choice([0.0, 0.02, 0.1, 0.3])  # how often something fails
        self.leaving = self.random.choice([0.0, 0.1, 1.0, 8.0])  # how often a worker ends well early
        self.length = self.random.randint(20, 60)

    def run(self) -> Witness:
        """Let it happen, to its end."""
        while self.witness.events.total() < self.length:
            self.witness.tell(self._choose())
        self.witness.end()
        return self.witness

    def _choose(self) -> Event:
        state, chance = self.witness.state, self.random
        if not state.placement or chance.random() < 0.01:
            return HostsChanged(tuple(Host(f"h{n}", chance.randint(1, 4)) for n in range(chance.randint(1, 5))))
        if chance.random() < 0.05:
            return self._choose_unlikely()
        if chance.random() < self.trouble / 4:
            return self._choose_trouble()
        likely: list[Callable[[], Event]] = [
            lambda: choose_report(state, chance.choice),
            lambda: Ticked(state.now + chance.choice([0.25, 0.25, 1.0, 5.0, 100.0])),
            lambda: choose_store(state),
            lambda: Exited(self._anybody(), 0),
            lambda: choose_join(state, chance.choice),
        ]
        leaving = 6 if state.phase is Phase.DRAINING else self.leaving
        (choice,) = chance.choices(likely, (3, 2, 1, leaving, 8))
        return choice()

    def _choose_trouble(self) -> Event:
        host = self.random.choice(list(self.witness.state.hosts))
        choices: list[Event] = [
            Exited(self._anybody(), self.random.choice([1, 3, -9])),
            Exited(self._anybody(), 127, "the command was not found"),
            Lost(host, "its order channel closed"),
            Stopped(130, "interrupted", at_once=self.random.random() < 0.5),
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
            StoreOpened(somebody, self.random.randint(0, 3), Endpoint("10.0.0.1", 4711)),
            Lost("z", "it never was"),
            Ticked(state.now - 1),
            Stopped(143, "terminated"),
        ]
        return self.random.choice(choices)

    def _anybody(self) -> Worker:
        return self.random.choice(list(self.witness.state.workers.values())).worker
