"""Ranks are numbered as they are defined."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.core.model import Host, Slot, rank
from rendezvous.core.scheduling import place
from tests.rendezvous.core.laws import number_members
from tests.rendezvous.core.transcript import show_assignment


def show(*slots: str) -> list[str]:
    return [show_assignment(assignment) for assignment in rank([Slot.parse(slot) for slot in slots])]


def test_a_host_that_lacks_a_local_rank_is_not_counted_in_its_cross_size() -> None:
    assert show("a:0", "b:0", "b:1", "c:0", "c:1", "c:2") == [
        "rank=0/6 local=0/1 cross=0/3",
        "rank=1/6 local=0/2 cross=1/3",
        "rank=2/6 local=1/2 cross=0/2",
        "rank=3/6 local=0/3 cross=2/3",
        "rank=4/6 local=1/3 cross=1/2",
        "rank=5/6 local=2/3 cross=0/1",
    ]


def test_local_ranks_have_no_gap_where_a_slot_is_left_out() -> None:
    assert show("a:0", "a:2", "a:3")[1:] == ["rank=1/3 local=1/3 cross=0/1", "rank=2/3 local=2/3 cross=0/1"]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_the_numbers_are_those_of_their_definitions(offers: list[int]) -> None:
    slots = place([Host(f"h{number}", count) for number, count in enumerate(offers)], sum(offers), sum(offers))
    assignments = rank(slots)
    assert assignments == number_members(slots)
    assert sorted(a.rank for a in assignments) == list(range(sum(offers)))
    assert sum(a.local_size for a in assignments if a.local_rank == 0) == sum(offers)
    assert sum(a.cross_size for a in assignments if a.cross_rank == 0) == sum(offers)


@pytest.mark.parametrize("slots", ["a:0 b:0 a:1", "a:0 b:0 a:1 c:0 b:1"])
def test_the_numbers_are_right_even_where_hosts_are_not_adjacent(slots: str) -> None:
    members = [Slot.parse(slot) for slot in slots.split()]
    assert rank(members) == number_members(members)
