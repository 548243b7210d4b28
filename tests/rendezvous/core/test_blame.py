"""Blame falls on slots, closes them and their hosts for a while, and is forgotten."""

import pytest

from rendezvous.core.blame import Blame
from rendezvous.core.model import Host, Recovery, Slot

RECOVERY = Recovery(cooldown_seconds=(10.0, 100.0), failures_per_slot=3, forgiveness_seconds=600.0)
A0, A1, A2 = (Slot("a", index) for index in range(3))


def fail(blame: Blame, *slots: Slot, at: float = 0.0, host: Host | None = None) -> Blame:
    for slot in slots:
        blame = blame.blame_slot(slot, host, at, RECOVERY)
    return blame


def test_a_slot_closes_with_its_last_failure_and_no_other_slot_does() -> None:
    blame = fail(Blame(), A0, A0, host=Host("a", 8))
    assert blame.is_open(A0, 0, RECOVERY)
    blame = fail(blame, A0, host=Host("a", 8))
    assert [blame.is_open(slot, 0, RECOVERY) for slot in (A0, A1, Slot("b", 0))] == [False, True, True]
    assert blame.find_closed(0) == {}


@pytest.mark.parametrize(("slots", "closed"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_half_of_its_slots_rounded_up_close_a_host(slots: int, closed: int) -> None:
    host = Host("a", slots)
    blame = Blame()
    for index in range(closed):
        assert blame.find_closed(0) == {}
        blame = fail(blame, *[Slot("a", index)] * 3, host=host)
    assert blame.find_closed(0) == {"a": 10.0}


def test_a_host_that_is_not_offered_any_more_does_not_close() -> None:
    assert fail(Blame(), A0, A0, A0, host=None).find_closed(0) == {}


def test_a_host_comes_back_with_fresh_slots_after_its_cooldown() -> None:
    blame = fail(Blame(), A0, A0, A0, A1, at=5.0, host=Host("a", 2))
    assert not blame.is_open(A1, 14.9, RECOVERY)
    assert [blame.is_open(slot, 15.0, RECOVERY) for slot in (A0, A1)] == [True, True]
    assert blame.count(A0, 15.0, RECOVERY) == 0


def test_each_closing_takes_twice_as_long_up_to_the_longest() -> None:
    blame, now, cooldowns = Blame(), 0.0, []
    for _ in range(6):
        blame = blame.close_host("a", now, RECOVERY)
        (left_seconds,) = blame.find_closed(now).values()
        cooldowns.append(left_seconds)
        now += left_seconds
    assert cooldowns == [10, 20, 40, 80, 100, 100]


def test_very_many_closings_are_no_trouble() -> None:
    blame = Blame()
    for now in range(2000):
        blame = blame.close_host("a", float(now), Recovery(cooldown_seconds=(0.5, 0.5)))
    assert blame.find_closed(1999.0) == {"a": 0.5}


def test_what_lies_far_back_is_forgotten() -> None:
    blame = fail(Blame(), A0, A0, at=0.0)
    assert (blame.count(A0, 600.0, RECOVERY), blame.count(A0, 600.1, RECOVERY)) == (2, 0)
    assert fail(blame, A0, at=700.0).count(A0, 700.0, RECOVERY) == 1
    closed = Blame().close_host("a", 0.0, RECOVERY)
    assert closed.close_host("a", 611.0, RECOVERY).find_closed(611.0) == {"a": 10.0}
    assert closed.close_host("a", 609.0, RECOVERY).find_closed(609.0) == {"a": 20.0}


def test_a_command_that_cannot_be_started_closes_its_slot_at_once() -> None:
    blame = Blame().blame_slot(A0, Host("a", 8), 0.0, RECOVERY, weight=3)
    assert not blame.is_open(A0, 0.0, RECOVERY)
