"""A server that shows its reporter each event before it happens, and what has become of the job after it."""

from unittest.mock import Mock

import pytest

from hvdrun.console.reporting_server import ReportingServer
from rendezvous.core.messages import Event, HostsChanged, IllegalEventError, Ticked
from rendezvous.core.model import Host, Policy
from rendezvous.server.authority import Authority

CHANGED = HostsChanged((Host("a", 1),))


def test_events_are_shown_before_they_happen_and_states_after() -> None:
    heard: list[tuple[Event | None, int]] = []  # the events, and how many workers there are at each word
    reporter = Mock(
        note_event=lambda event, state: heard.append((event, len(state.workers))),
        note_state=lambda state: heard.append((None, len(state.workers))),
    )
    carried_out: list[object] = []
    server = ReportingServer(Policy.static(1), carried_out.append, Authority("job").issue_server(), reporter)
    server.submit(CHANGED)
    assert heard == [(CHANGED, 0), (None, 1)]
    assert len(carried_out) == 1
    server.submit(Ticked(1.0))
    with pytest.raises(IllegalEventError):
        server.submit(Ticked(0.5))
    assert [event for event, _ in heard[2:]] == [Ticked(1.0), None, Ticked(0.5)]
