"""The states of random histories, one after the other, as a server sees them."""

from collections.abc import Callable
from unittest import mock

from rendezvous.core.messages import Effect, Event
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
