"""Values refuse what cannot be, and are read as they are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.core.model import Endpoint, Host, Policy, Slot, Worker


@given(st.text(min_size=1), st.integers(0, 10**6))
def test_a_slot_is_read_as_it_is_written(host: str, index: int) -> None:
    assert Slot.parse(str(Slot(host, index))) == Slot(host, index)


def test_the_host_of_a_slot_may_contain_colons() -> None:
    assert Slot.parse("2001:db8::1:3") == Slot("2001:db8::1", 3)


@pytest.mark.parametrize("text", ["", "a", "a:", ":0", "a:x", "a:-1", "a:1.5", "a: 1"])
def test_a_malformed_slot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a slot; it is written host:index"):
        Slot.parse(text)


@pytest.mark.parametrize(
    ("address", "shown"), [("10.0.0.1", "10.0.0.1:80"), ("server1", "server1:80"), ("2001:db8::1", "[2001:db8::1]:80")]
)
def test_an_endpoint_is_written_so_that_its_port_is_distinguished_from_its_address(address: str, shown: str) -> None:
    assert str(Endpoint(address, 80)) == shown


def test_a_worker_shows_its_incarnation_from_the_second_on() -> None:
    assert str(Worker(Slot("a", 0), 1)) == "a:0"
    assert str(Worker(Slot("a", 0), 2)) == "a:0#2"


@pytest.mark.parametrize(("name", "slots"), [("", 1), ("a", 0), ("a", -1)])
def test_a_host_needs_a_name_and_a_slot(name: str, slots: int) -> None:
    with pytest.raises(ValueError, match=r"a host needs a name|must offer at least one"):
        Host(name, slots)


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 1), (2, 1), (-1, 1)])
def test_an_impossible_size_is_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="workers is impossible"):
        Policy(least, most)


@pytest.mark.parametrize(
    "limits",
    [{"start_timeout_seconds": 0.0}, {"lease_seconds": 0.0}, {"lease_seconds": math.nan}, {"grace_seconds": -1.0}],
    ids=str,
)
def test_an_impossible_time_limit_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be longer than 0, and the grace not negative"):
        Policy.static(1, **limits)


def test_a_negative_number_of_failures_cannot_be_allowed() -> None:
    with pytest.raises(ValueError, match="-1 failures cannot be allowed"):
        Policy(1, 1, failures_allowed=-1)


def test_a_grace_of_zero_is_allowed() -> None:
    assert Policy.static(1, grace_seconds=0.0).grace_seconds == 0.0


def test_a_static_policy_has_one_size_and_allows_no_failure() -> None:
    policy = Policy.static(3, lease_seconds=7.0)
    assert (policy.min_size, policy.max_size, policy.failures_allowed, policy.lease_seconds) == (3, 3, 0, 7.0)
