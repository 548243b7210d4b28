"""The core's errors are sentences, and short ones."""

from rendezvous.core.messages import IllegalEventError, Reported, TooFewSlotsError
from rendezvous.core.model import Host, Slot, Worker


def test_an_illegal_event_is_named_and_kept() -> None:
    event = Reported("a")
    error = IllegalEventError(event, "host a is not in use")
    assert str(error) == "Reported is not possible here: host a is not in use"
    assert error.event is event


def test_the_sentence_stays_short_however_much_the_event_lists() -> None:
    event = Reported("a", tuple(Worker(Slot("a", index), 1) for index in range(10_000)))
    assert len(str(IllegalEventError(event, "host a is not in use"))) < 100


def test_too_few_slots_are_reported_with_the_offers() -> None:
    error = TooFewSlotsError([Host("a", 2), Host("b", 1)], 4)
    assert str(error) == "4 workers do not fit into 3 slots (a:2, b:1)"
    assert (error.offered, error.needed) == (3, 4)


def test_an_offer_without_hosts_is_named() -> None:
    assert "no host at all" in str(TooFewSlotsError([], 1))
