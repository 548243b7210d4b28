"""Finished: the outcome stands; what still arrives is late, and changes nothing."""

from rendezvous.core.effects import Effect, Refuse
from rendezvous.core.events import Event, Joined
from rendezvous.core.state import State


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Refuse late joins; ignore the rest."""
    if isinstance(event, Joined):
        reason = "the job is over" if state.outcome is None else f"the job is over: {state.outcome.reason}"
        return state, (Refuse(event.worker, reason),)
    return state, ()
