"""A simulated job whose server is killed at some events, and started again with nothing but its state."""

from dataclasses import dataclass, field
from enum import StrEnum

from rendezvous.core.holds import holds
from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import Dismiss, Effect, Event, Launch, Lost, OfferResize, Publish, Ticked
from rendezvous.core.model import Worker
from rendezvous.core.state import State
from tests.rendezvous.core.histories import SimulatedHistory, SimulatedRestartHistory, end_well
from tests.rendezvous.core.simulation import Simulation, cooperate


class Kill(StrEnum):
    """When the server is killed."""

    BEFORE_WRITE = "before the state after the event is durable"
    AFTER_WRITE = "after that, with no effect performed"
    AFTER_EFFECTS = "after the effects, with no call answered"


@dataclass
class MortalSimulation(Simulation):
    """What there is outside of a core whose server dies.

    kills: at which events, counted from 0.
    started: the workers that have ever run. published: the members of each generation.
    tenures: by host, how many of its agents have been dismissed.
    """

    kills: dict[int, Kill] = field(default_factory=dict)
    events: int = 0
    started: set[Worker] = field(default_factory=set)
    published: dict[int, Publish] = field(default_factory=dict)
    tenures: dict[str, int] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Let an event happen; if the server is killed meanwhile, a caller asks again."""
        kill = self.kills.get(self.events)
        self.events += 1
        if kill is not None:
            self._die(event, kill)
        # A loss that is durable is not found again. A tick of the former clock is none of the new one.
        is_over = isinstance(event, Ticked) or (isinstance(event, Lost) and kill is not Kill.BEFORE_WRITE)
        if kill is None or not is_over:
            super().apply(event)

    def _die(self, event: Event, kill: Kill) -> None:
        if kill is not Kill.BEFORE_WRITE:
            for effect in self.checker.apply(event) or ():
                if kill is Kill.AFTER_EFFECTS:
                    self.carry_out(effect)
        self.restart()

    def restart(self) -> None:
        """A server starts with the state, and its clock shows any time."""
        state = self.checker.restart()
        self._refuse_former(state)
        for effect in holds(state):
            self._hold(effect)
        if state.generation is not None and state.outcome is None:
            assert self.generation == state.number, "the members do not know their generation"
            is_interrupted = state.phase is Phase.REFORMING and state.interruption is not None
            assert self.interrupted == state.number or not is_interrupted, "the members have not been interrupted"
        clocks = (0.0, state.now, state.now + 0.25, float(self.chance.randrange(1_000_000)))  # exact sums follow
        super().apply(Ticked(self.chance.choice(clocks)))

    def carry_out(self, effect: Effect) -> None:
        """What follows from an effect."""
        if isinstance(effect, Dismiss):
            self.tenures[effect.host] = max(self.tenures.get(effect.host, 0), effect.tenure)
        super().carry_out(effect)

    def launch(self, worker: Worker) -> None:
        """No worker runs twice."""
        assert worker in self.alive or worker not in self.started, f"{worker} is started twice"
        self.started.add(worker)
        super().launch(worker)

    def publish(self, publish: Publish) -> None:
        """A generation is the same each time."""
        number = publish.generation.number
        known = self.published.setdefault(number, publish)
        assert known.generation == publish.generation, "a generation has other members"
        assert (known.assignments, known.decision) == (publish.assignments, publish.decision)
        if number > self.generation:
            super().publish(publish)

    def _refuse_former(self, state: State) -> None:
        """An agent that was dismissed ends its workers, and an agent ends those that it should not have."""
        for host in {worker.slot.host for worker in self.alive} | self.cut:
            if state.tenures.get(host, 0) > self.tenures.get(host, 0):
                self.alive = {worker: each for worker, each in self.alive.items() if worker.slot.host != host}
                self.cut.discard(host)
        self.tenures |= state.tenures

    def _hold(self, effect: Effect) -> None:
        """Perform what holds; what has been performed before changes nothing."""
        match effect:
            case OfferResize(_, number, adds, removes):
                if not (adds or removes) and self.offered is None:
                    return  # the withdrawal of an offer that was not made
                assert self.offered is None or number >= self.offered.number
            case Launch(worker):
                assert worker not in self.started, f"{worker} has been started"
            case _:
                pass
        self.carry_out(effect)


class MortalHistory(SimulatedHistory):
    """One seeded history of an elastic job, until its server has been killed; then all cooperate."""

    make_simulation = MortalSimulation
    simulation: MortalSimulation

    def die(self, kills: dict[int, Kill]) -> None:
        """Let it happen, and end."""
        simulation, checker = self.simulation, self.checker
        simulation.kills = kills
        last = max(kills, default=self.length)
        while simulation.events <= last and checker.finish is None:
            self.happen()
        cooperate(simulation)
        if self.random.random() < 0.5:
            end_well(simulation)
        checker.end()


class MortalRestartHistory(SimulatedRestartHistory, MortalHistory):
    """One seeded history of a job whose workers are all started again."""


KINDS = (MortalHistory, MortalRestartHistory)
