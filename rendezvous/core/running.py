"""Running: a generation is live and every member is in it, or has ended well."""

from rendezvous.core import endings
from rendezvous.core.effects import Announce, Effect
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Event, Joined, StoreOpened
from rendezvous.core.joining import join
from rendezvous.core.state import State


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what happens while all train."""
    generation = state.generation
    if generation is None:
        raise ValueError("a running job has a generation")
    match event:
        case Joined():
            return join(state, event)
        case StoreOpened(worker, number, endpoint) if number == generation.number:
            if worker != generation.members[0]:
                raise IllegalEventError(event, f"only rank 0 ({generation.members[0]}) opens the store")
            return state, (Announce(number, endpoint),)
        case _:
            return endings.handle(state, event)
