"""How many workers each host gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.spec.mapping import MapBy, map_workers, raise_slots, spread
from rendezvous.core.model import Host

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def make_hosts(*slots: int) -> tuple[Host, ...]:
    return tuple(Host(f"h{index}", count) for index, count in enumerate(slots))


def count_slots(hosts: tuple[Host, ...]) -> list[int]:
    return [host.slots for host in hosts]


@pytest.mark.parametrize(
    ("slots", "size", "dealt"),
    [
        ((4, 4), 4, [2, 2]),
        ((4, 4), 5, [3, 2]),
        ((4, 1), 4, [3, 1]),
        ((1, 4, 2), 6, [1, 3, 2]),
        ((4, 4, 4), 2, [1, 1]),
        ((9,), 3, [3]),
        ((1, 1), 3, [1, 1]),
    ],
)
def test_workers_are_dealt_out_to_the_hosts_in_turn(slots: tuple[int, ...], size: int, dealt: list[int]) -> None:
    assert count_slots(spread(make_hosts(*slots), size)) == dealt


@given(COUNTS, st.integers(1, 60))
def test_dealing_uses_every_slot_that_it_needs_and_is_fair(slots: list[int], size: int) -> None:
    hosts = make_hosts(*slots)
    dealt = {host.name: host.slots for host in spread(hosts, size)}
    assert sum(dealt.values()) == min(size, sum(slots))
    for host in hosts:
        got = dealt.get(host.name, 0)
        assert got <= host.slots
        assert got == host.slots or all(other <= got + 1 for other in dealt.values())


def test_very_many_workers_are_dealt_out_together() -> None:
    assert count_slots(spread(make_hosts(1_000_000, 1_000_000), 1_000_000)) == [500_000, 500_000]


@pytest.mark.parametrize(
    ("slots", "size", "raised"), [((2, 2), 4, [2, 2]), ((2, 2), 3, [2, 2]), ((1, 1), 4, [2, 2]), ((2, 1), 6, [4, 2])]
)
def test_missing_slots_are_added_evenly(slots: tuple[int, ...], size: int, raised: list[int]) -> None:
    assert count_slots(raise_slots(make_hosts(*slots), size)) == raised


@pytest.mark.parametrize(
    ("map_by", "oversubscribe", "size", "slots"),
    [
        (MapBy.SLOT, False, 2, [4, 2]),
        (MapBy.SLOT, True, 8, [5, 3]),
        (MapBy.SLOT, False, 8, [4, 2]),
        (MapBy.NODE, False, 4, [2, 2]),
        (MapBy.NODE, True, 8, [5, 3]),
    ],
)
def test_mapping_goes_with_oversubscription(map_by: MapBy, *, oversubscribe: bool, size: int, slots: list[int]) -> None:
    assert count_slots(map_workers(make_hosts(4, 2), size, map_by, oversubscribe=oversubscribe)) == slots
