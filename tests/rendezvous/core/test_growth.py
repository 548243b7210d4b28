"""A resize is offered when it would change something, and only to those who could make use of it."""

import shlex

from rendezvous.core import membership
from rendezvous.core.effects import Effect, OfferResize
from rendezvous.core.growth import offer_resize
from tests.rendezvous.core.commands import parse_event
from tests.rendezvous.core.transcript import Teller, play

PAIR = ("policy min=1 max=4 failures=any gather=5 lease=60", "tick 0", "hosts a:2", "join a:0", "join a:1")
DECLARED = (*PAIR, "declare a:0", "declare a:1")


def offers(*commands: str) -> list[OfferResize]:
    """All that was offered in this story."""
    state = play(commands[0])
    told: list[Effect] = []
    for command in commands[1:]:
        state, effects = membership.step(state, parse_event(shlex.split(command)))
        told += effects
    return [effect for effect in told if isinstance(effect, OfferResize)]


def test_the_last_newcomer_brings_the_offer() -> None:
    story = (*DECLARED, "hosts a:4", "join a:2")
    assert offers(*story) == []
    assert offers(*story, "join a:3") == [OfferResize(1, 1, adds=True, removes=False)]


def test_the_first_newcomer_does_not_wait_for_long() -> None:
    story = (*DECLARED, "hosts a:4", "join a:2", "tick 1", "tick 5.75")
    assert offers(*story) == []
    assert offers(*story, "tick 6") == [OfferResize(1, 1, adds=True, removes=False)]
    assert offers(*story, "tick 6", "tick 6.25") == offers(*story, "tick 6")
    assert [offer.number for offer in offers(*story, "tick 6", "join a:3")] == [1, 2]


def test_nothing_is_offered_to_those_without_a_state() -> None:
    assert offers(*PAIR, "declare a:0", "hosts a:1") == []
    assert offers(*DECLARED, "hosts a:1") == [OfferResize(1, 1, adds=False, removes=True)]


def test_an_offer_that_would_change_nothing_any_more_is_withdrawn() -> None:
    assert offers(*DECLARED, "hosts a:1", "hosts a:2") == [
        OfferResize(1, 1, adds=False, removes=True),
        OfferResize(1, 2, adds=False, removes=False),
    ]


def test_a_new_generation_is_offered_what_the_former_one_did_not_take() -> None:
    story = (*DECLARED, "hosts a:3", "join a:2", "exit a:1 1", "join a:0 after=1 continue state")
    assert [offer.generation for offer in offers(*story)] == [1]  # another is on its way
    assert [offer.generation for offer in offers(*story, "join a:1#2")] == [1, 2]


def test_nothing_is_offered_once_somebody_has_ended_well() -> None:
    assert offers(*DECLARED, "exit a:0 0", "hosts b:1") == []


def test_only_a_live_generation_of_a_job_that_may_change_is_offered_anything() -> None:
    for story in (PAIR[:3], (*DECLARED, "exit a:0 1"), ("policy size=1", "hosts a:1", "join a:0", "declare a:0")):
        state = play(*story)
        assert offer_resize(state) == (state, ())
    assert Teller().tell("state") == ["= forming"]
