"""The state knows which agent of each host is the present one, and where the newest sequencer listens."""

import pytest

from rendezvous.core import membership
from rendezvous.core.messages import Dismiss, HostsChanged, Lost
from rendezvous.core.model import Endpoint, Host
from tests.rendezvous.core.transcript import play

ELASTIC = "policy min=1 max=4 failures=any cooldown=0-0"
BOTH = (Host("a", 1), Host("b", 1))
TRAINING = (ELASTIC, "hosts a:1 b:1", "report all", "join all", "declare all", "sequencer a generation=1 at 10.0.0.1:7")


def test_a_host_without_a_dismissed_agent_has_no_tenure() -> None:
    state = play(ELASTIC, "hosts a:1 b:1")
    assert (state.tenures, state.left) == ({}, {})


def test_each_dismissal_has_its_own_tenure_and_one_in_peace_is_known() -> None:
    state = play(*TRAINING)
    dismissals = []
    for event in (Lost("b", "gone"), Lost("b", "gone"), HostsChanged(BOTH[:1]), HostsChanged(BOTH)):
        state, effects = membership.step(state, event)
        dismissals += [each for each in effects if isinstance(each, Dismiss)]
    assert [(each.tenure, each.is_lost) for each in dismissals] == [(1, True), (2, True)]
    assert (state.tenures, state.left) == ({"b": 2}, {})

    state = play(*TRAINING, "hosts a:1", "join all after=1 resize state", "exit b:0 -15 stopped")
    assert (state.tenures, state.left) == ({"b": 1}, {"b": (1,)})
    assert "b" not in state.hosts


@pytest.mark.parametrize(
    "later",
    [
        ("exit b:0 -9", "join a:0 after=1 continue state"),
        ("join all after=1",),
    ],
    ids=["after a loss", "after the members have begun again"],
)
def test_the_sequencer_of_the_newest_generation_is_known_until_the_next_one(later: tuple[str, ...]) -> None:
    assert play(*TRAINING).sequencer == Endpoint("10.0.0.1", 7)
    state = play(*TRAINING, *later)
    assert (state.number, state.sequencer) == (2, None)


def test_a_late_sequencer_of_a_former_generation_is_no_sequencer_of_the_newest() -> None:
    state = play(*TRAINING, "join all after=1", "sequencer a generation=1 at 10.0.0.1:8")
    assert state.sequencer is None
