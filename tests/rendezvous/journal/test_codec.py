"""A value of the core comes back from JSON as it was, also from a version whose fields were others."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from rendezvous.core import membership
from rendezvous.core.messages import Exited, HostsChanged, Joined
from rendezvous.core.model import Endpoint, Host, Policy, Slot, Worker
from rendezvous.core.outcome import Blame
from rendezvous.core.reports import JoinReason, PendingOperation, Report
from rendezvous.core.state import State
from rendezvous.core.table import Table
from rendezvous.journal import codec
from rendezvous.journal.codec import UnknownFieldError, decode, encode
from tests.rendezvous.core.histories import KINDS
from tests.rendezvous.journal.golden import describe
from tests.rendezvous.journal.states import list_states


class Colour(StrEnum):
    """An enum."""

    RED = "red"


@dataclass(frozen=True, slots=True)
class Sample:
    """A field of each kind that the core has."""

    event: Joined | Exited
    key: bytes = b""
    colours: Mapping[Colour, int] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    slots: Table[Slot, Endpoint | None] = Table.of(())  # noqa: RUF009 - an immutable value may be shared
    pair: tuple[int, float | None] = (0, None)
    ranks: tuple[int, ...] = ()


WORKER = Worker(Slot("h0", 1), 2)


def pass_through_json(value: Any) -> Any:
    """What is read after a value was written."""
    return decode(type(value), json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_each_state_of_a_history_comes_back_in_the_same_order(seed: int) -> None:
    for state in list_states(seed):
        again = pass_through_json(state)
        assert again == state
        assert encode(again) == encode(state)


def test_a_value_of_each_kind_comes_back() -> None:
    sample = Sample(
        event=Joined(WORKER, 1, Report(JoinReason.CONTINUE, pending=(PendingOperation((0, 1), "a", "b"),))),
        key=b"\0\xff",
        colours={Colour.RED: 3},
        names=frozenset({"b", "a"}),
        slots=Table.of([(Slot("h1", 0), None), (Slot("h0", 0), Endpoint("::1", 1))]),
        pair=(1, 0.1),
        ranks=(3, 4, 5, 6, 7),
    )
    again = pass_through_json(sample)
    assert again == sample
    assert list(again.slots) == list(sample.slots)


def test_a_member_of_a_union_comes_back_as_its_class() -> None:
    sample = Sample(Exited(WORKER, 1, blame=Blame("a peer has ended", (0,))))
    assert pass_through_json(sample) == sample


@pytest.mark.parametrize("ranks", [(), (5,), (1, 2, 3), (0, 1, 2, 3), (0, 2, 1, 3), (7, 7, 7, 10)])
def test_ranks_come_back_whether_they_are_a_range_or_not(ranks: tuple[int, ...]) -> None:
    sample = Sample(Joined(WORKER), ranks=ranks)
    assert pass_through_json(sample) == sample


def test_the_ranks_of_a_large_generation_are_written_as_a_range() -> None:
    operation = PendingOperation(tuple(range(8000)), "allreduce.loss", "allreduce 'loss'")
    assert len(json.dumps(encode(operation))) < 200
    assert pass_through_json(operation).ranks is pass_through_json(operation).ranks


def test_a_name_that_is_no_text_comes_back() -> None:
    host = Host("a\udcff", 1)
    assert pass_through_json(host) == host


def test_a_field_that_a_former_version_lacked_gets_its_default() -> None:
    encoded = encode(Sample(Joined(WORKER), key=b"secret"))
    del encoded["key"]
    assert decode(Sample, encoded) == Sample(Joined(WORKER))


def test_a_field_that_a_later_version_has_is_refused() -> None:
    encoded = {**encode(Host("a", 1)), "colour": "red"}
    with pytest.raises(UnknownFieldError, match="Host has unknown fields: colour"):
        decode(Host, encoded)


def test_a_field_that_was_removed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.REMOVED_FIELDS, "Host", frozenset({"colour"}))
    assert decode(Host, {**encode(Host("a", 1)), "colour": "red"}) == Host("a", 1)


def test_a_former_value_of_an_enum_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.FORMER_VALUES, "Colour", {"scarlet": "red"})
    encoded = encode(Sample(Joined(WORKER), colours={Colour.RED: 1}))
    encoded["colours"] = [["scarlet", 1]]
    assert decode(Sample, encoded).colours == {Colour.RED: 1}


@dataclass(frozen=True, slots=True)
class Foreign:
    """What no journal can hold."""

    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Mixed:
    """A union that does not say which of its types a value has."""

    value: Host | tuple[int, ...]


@pytest.mark.parametrize("kind", [Foreign, Mixed])
def test_a_type_without_a_codec_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="cannot be written into a journal"):
        describe(kind)


def test_the_description_of_a_state_has_all_that_it_may_contain() -> None:
    described = describe(State)
    assert {"State", "WorkerRecord", "Report", "PendingOperation", "Done", "Phase", "HostCooldown"} <= described.keys()
    assert described["Slot"] == ["host", "index"]
    assert "forming" in described["Phase"]


def test_a_state_that_is_read_steps_on() -> None:
    state = membership.begin(Policy.static(2))
    state, _ = membership.step(state, HostsChanged((Host("h0", 2),)))
    again = pass_through_json(state)
    for worker in [record.worker for record in state.workers.values()]:
        assert membership.step(again, Joined(worker)) == membership.step(state, Joined(worker))
