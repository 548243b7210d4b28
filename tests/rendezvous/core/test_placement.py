"""Slots are used in order, neither too few nor too many."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.core.messages import TooFewSlotsError
from rendezvous.core.model import Host
from rendezvous.core.scheduling import place


def show(hosts: list[Host], least: int, most: int) -> str:
    return " ".join(str(slot) for slot in place(hosts, least, most))


@pytest.mark.parametrize(
    ("least", "most", "slots"), [(1, 1, "b:0"), (2, 2, "b:0 b:1"), (3, 3, "b:0 b:1 a:0"), (1, 9, "b:0 b:1 a:0")]
)
def test_hosts_are_filled_in_the_order_given(least: int, most: int, slots: str) -> None:
    assert show([Host("b", 2), Host("a", 1)], least, most) == slots


@pytest.mark.parametrize("hosts", [[], [Host("a", 1)], [Host("a", 1), Host("b", 1)]])
def test_too_few_slots_are_refused(hosts: list[Host]) -> None:
    with pytest.raises(TooFewSlotsError) as caught:
        place(hosts, 3, 4)
    assert (caught.value.needed, caught.value.offered) == (3, len(hosts))


def test_slots_beyond_the_need_cost_nothing() -> None:
    tracemalloc.start()
    try:
        assert show([Host("a", 10**5)], 1, 2) == "a:0 a:1"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10**5


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 30), st.integers(0, 10))
def test_the_number_of_workers_stays_between_the_least_and_the_most(offers: list[int], least: int, room: int) -> None:
    hosts = [Host(f"h{number}", slots) for number, slots in enumerate(offers)]
    if sum(offers) < least:
        with pytest.raises(TooFewSlotsError):
            place(hosts, least, least + room)
        return
    slots = place(hosts, least, least + room)
    assert len(slots) == min(sum(offers), least + room)
    assert len(set(slots)) == len(slots)
    assert all(slot.index < offers[int(slot.host[1:])] for slot in slots)
