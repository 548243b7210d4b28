"""A server that shows its narrator each event before it happens, and what has become of the job after it."""

from typing import cast

import pytest

from hvdrun.narrated_server import NarratedServer
from hvdrun.narrator import Narrator
from rendezvous.authority import Authority
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Event, HostsChanged, Ticked
from rendezvous.core.model import Host, Policy
from rendezvous.core.state import State

CHANGED = HostsChanged((Host("a", 1),))


class Listener:
    """What the narrator hears: the events, and how many workers there are at each word."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event | None, int]] = []

    def note_event(self, event: Event, state: State) -> None:
        """See `Narrator`."""
        self.heard.append((event, len(state.workers)))

    def note_state(self, state: State) -> None:
        """See `Narrator`."""
        self.heard.append((None, len(state.workers)))


def test_events_are_shown_before_they_happen_and_states_after() -> None:
    listener = Listener()
    carried_out: list[object] = []
    server = NarratedServer(
        Policy.static(1), carried_out.append, Authority("job").issue_server(), cast("Narrator", listener)
    )
    server.tell(CHANGED)
    assert listener.heard == [(CHANGED, 0), (None, 1)]
    assert len(carried_out) == 1
    server.tell(Ticked(1.0))
    with pytest.raises(IllegalEventError):
        server.tell(Ticked(0.5))
    assert [event for event, _ in listener.heard[2:]] == [Ticked(1.0), None, Ticked(0.5)]
