"""States one after the other, as a server sees them: of random histories, and of a job that starts."""

from collections.abc import Callable
from unittest import mock

from rendezvous.core import membership
from rendezvous.core.messages import Effect, Event, HostsChanged, Joined
from rendezvous.core.model import Host, Policy
from rendezvous.core.state import State
from tests.rendezvous.core.checker import Checker
from tests.rendezvous.core.histories import KINDS


def follow_history(seed: int, see: Callable[[State], None]) -> None:
    """Let the history with this seed happen, and show its state before the first event and after each."""
    apply = Checker.apply
    shown: list[State] = []

    def apply_and_show(checker: Checker, event: Event) -> tuple[Effect, ...] | None:
        if not shown:
            shown.append(checker.state)
            see(checker.state)
        effects = apply(checker, event)
        see(checker.state)
        return effects

    with mock.patch.object(Checker, "apply", apply_and_show):
        KINDS[seed % len(KINDS)](seed).run()


def list_states(seed: int) -> list[State]:
    """All states of that history."""
    states: list[State] = []
    follow_history(seed, states.append)
    return states


def place_workers(size: int) -> State:
    """A job whose workers are starting."""
    state = membership.begin(Policy.static(size))
    state, _ = membership.step(state, HostsChanged((Host("h0", size),)))
    return state


def join_all(state: State) -> list[State]:
    """The states after each join."""
    states = []
    for record in list(state.workers.values()):
        state, _ = membership.step(state, Joined(record.worker))
        states.append(state)
    return states
