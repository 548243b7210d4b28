"""Blacklist falls on slots, closes them and their hosts for a while, and is forgotten."""

import pytest

from rendezvous.core.failures import Blacklist
from rendezvous.core.model import Recovery, Slot
from tests.rendezvous.core.transcript import find_closed

RECOVERY = Recovery(cooldown_seconds=(10.0, 100.0), failures_per_slot=3, forgiveness_seconds=600.0)
A0, A1 = (Slot("a", index) for index in range(2))


def fail(blacklist: Blacklist, *slots: Slot, at: float = 0.0, offered: int = 0) -> Blacklist:
    for slot in slots:
        blacklist = blacklist.count_failure(slot, offered, at, RECOVERY)
    return blacklist


@pytest.mark.parametrize(("slots", "closed"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_half_of_its_slots_rounded_up_close_a_host(slots: int, closed: int) -> None:
    blacklist = Blacklist()
    for index in range(closed):
        assert find_closed(blacklist, 0) == {}
        blacklist = fail(blacklist, *[Slot("a", index)] * 3, offered=slots)
    assert find_closed(blacklist, 0) == {"a": 10.0}


def test_the_reason_of_a_closed_host_names_the_closed_slot_and_its_failures() -> None:
    blacklist = fail(Blacklist(), *[A0] * 3, A1, offered=3)
    fewer = fail(blacklist, A1, offered=2)  # the host offers fewer slots, of which half are closed
    why = "3 workers failed there (--slot-failures)"
    assert fewer.hosts["a"].reason == f"1 of its 2 slots is closed, a:0 because {why}"
    only = blacklist.count_failure(A0, 1, 0.0, RECOVERY, "its command cannot be started")
    assert only.hosts["a"].reason == "its only slot is closed because its command cannot be started"


def test_a_closed_host_comes_back_without_suspected_slots() -> None:
    closed = Blacklist(suspects=(A0, Slot("b", 0))).close_host("a", 0.0, RECOVERY, "it was lost")
    assert closed.suspects == (Slot("b", 0),)


def test_a_cooldown_stays_finite_after_thousands_of_closings() -> None:
    blacklist = Blacklist()
    for now in range(2000):
        blacklist = blacklist.close_host("a", float(now), Recovery(cooldown_seconds=(0.5, 0.5)), "it was lost")
    assert find_closed(blacklist, 1999.0) == {"a": 0.5}


def test_old_failures_are_forgotten() -> None:
    blacklist = fail(Blacklist(), A0, A0, at=0.0)
    assert (blacklist.count(A0, 600.0, RECOVERY), blacklist.count(A0, 600.1, RECOVERY)) == (2, 0)
    assert fail(blacklist, A0, at=700.0).count(A0, 700.0, RECOVERY) == 1
    closed = Blacklist().close_host("a", 0.0, RECOVERY, "it was lost")
    assert find_closed(closed.close_host("a", 611.0, RECOVERY, "it was lost"), 611.0) == {"a": 10.0}
    assert find_closed(closed.close_host("a", 609.0, RECOVERY, "it was lost"), 609.0) == {"a": 20.0}
