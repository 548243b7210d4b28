"""A difference turns one state into the next, in the same order, and is small where little has changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.core import membership
from rendezvous.core.messages import HostsChanged, Joined
from rendezvous.core.model import Host, Policy
from rendezvous.core.table import Table
from rendezvous.journal.codec import encode
from rendezvous.journal.difference import apply, difference
from tests.rendezvous.journal.states import list_states
from tests.seeds import list_seeds


@dataclass(frozen=True, slots=True)
class Place:
    """A value within a value."""

    name: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of each kind."""

    place: Place | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    table: Table[str, Place] = Table.of(())  # noqa: RUF009 - an immutable value may be shared
    pair: tuple[Mapping[str, int], int] = ({}, 0)
    names: frozenset[str] = frozenset()


_names = st.text("abc", max_size=2)
_places = st.builds(Place, _names, st.lists(st.integers(0, 9), max_size=3).map(tuple))
_mappings = st.lists(st.tuples(st.integers(0, 20).map(str), _places), max_size=20).map(dict)
_samples = st.builds(
    Sample,
    st.none() | _places,
    _mappings,
    _mappings.map(lambda entries: Table.of(entries.items())),
    st.tuples(st.dictionaries(_names, st.integers(0, 2), max_size=3), st.integers(0, 2)),
    st.frozensets(_names),
)


def assert_difference(former: object, new: object) -> None:
    """The law, of two values."""
    assert_difference_of_encoded((former, encode(former)), (new, encode(new)))


def assert_difference_of_encoded(former: tuple[object, object], new: tuple[object, object]) -> None:
    """The law, of two values with their encodings: it also holds after a way through JSON."""
    changes = json.loads(json.dumps(difference(former[0], new[0])))
    applied = apply(changes, former[0])
    assert applied == new[0]
    assert encode(applied) == new[1], "an order has changed"
    assert (changes is None) == (former[1] == new[1])


@given(_samples, _samples)
def test_a_difference_turns_any_value_into_any_other(former: Sample, new: Sample) -> None:
    assert_difference(former, new)


@given(_samples, st.data())
def test_a_difference_keeps_the_order_of_entries(sample: Sample, data: st.DataObject) -> None:
    entries = data.draw(st.permutations(list(sample.places.items())))
    names = data.draw(st.permutations(list(sample.pair[0].items())))
    assert_difference(sample, replace(sample, places=dict(entries), table=Table.of(entries), pair=(dict(names), 0)))


@pytest.mark.parametrize("seeds", list_seeds(60, 500), ids=str)
def test_differences_lead_through_each_history_in_the_same_order(seeds: range) -> None:
    for seed in seeds:
        encoded = ((state, encode(state)) for state in list_states(seed))
        for former, new in pairwise(encoded):
            try:
                assert_difference_of_encoded(former, new)
            except AssertionError as error:
                error.add_note(f"in the history with seed {seed}")
                raise


def test_a_join_in_a_large_job_changes_few_bytes() -> None:
    size = 2000
    state = membership.begin(Policy.static(size))
    state, _ = membership.step(state, HostsChanged(tuple(Host(f"h{number}", 8) for number in range(size // 8))))
    first, second, *_ = (record.worker for record in state.workers.values())
    state, _ = membership.step(state, Joined(first))
    joined, _ = membership.step(state, Joined(second))
    assert len(json.dumps(difference(state, joined))) < 600


def test_a_difference_to_another_value_is_refused() -> None:
    changes = difference(Sample(Place("a")), Sample(Place("b")))
    with pytest.raises(TypeError, match="no difference to None"):
        apply(changes, Sample())
    with pytest.raises(LookupError):
        apply({"elsewhere": ["b"]}, Sample())
