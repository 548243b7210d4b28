"""Who is asked to reach whom."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.network.findings import ALL_PAIRS_LIMIT, LAUNCHER, Findings, plan_pairs
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Found, Listening


def name_hosts(count: int) -> list[str]:
    return [f"host{index}" for index in range(count)]


def find_reached(start: str, pairs: Iterable[tuple[str, str]]) -> set[str]:
    reached = {start}
    while more := {other for one, other in pairs if one in reached} - reached:
        reached |= more
    return reached


@pytest.mark.parametrize("count", [1, 2, 3, ALL_PAIRS_LIMIT])
def test_few_hosts_are_tried_in_all_pairs(count: int) -> None:
    hosts = name_hosts(count)
    expected = {(one, other) for one in hosts for other in hosts if one != other} | {(one, LAUNCHER) for one in hosts}
    assert plan_pairs(hosts) == expected


@pytest.mark.parametrize("count", [ALL_PAIRS_LIMIT + 1, 63, 64, 65, 1000])
def test_of_many_hosts_each_tries_few_and_is_tried_by_several(count: int) -> None:
    hosts = name_hosts(count)
    pairs = plan_pairs(hosts)
    tries = Counter(one for one, _ in pairs)
    is_tried = Counter(other for _, other in pairs)
    assert max(tries.values()) <= 2 * count.bit_length() + 2
    assert min(is_tried.values()) >= 2 * (ALL_PAIRS_LIMIT.bit_length() - 1)
    assert all((host, LAUNCHER) in pairs and (host, host) not in pairs for host in hosts)
    assert all((host, hosts[0]) in pairs for host in hosts[1:])
    assert LAUNCHER not in tries


@given(st.integers(ALL_PAIRS_LIMIT + 1, 200), st.data())
def test_however_many_hosts_are_cut_in_two_some_pair_is_tried_across_both_ways(count: int, data: st.DataObject) -> None:
    hosts = name_hosts(count)
    part = data.draw(st.sets(st.sampled_from(hosts), min_size=1, max_size=count - 1))
    pairs = {(one, other) for one, other in plan_pairs(hosts) if other != LAUNCHER}
    assert any(one in part and other not in part for one, other in pairs)
    assert any(one not in part and other in part for one, other in pairs)


def test_the_plan_is_the_same_each_time() -> None:
    hosts = name_hosts(100)
    assert plan_pairs(hosts) == plan_pairs(list(hosts))
    assert find_reached(hosts[7], plan_pairs(hosts)) == {*hosts, LAUNCHER}


def test_the_launcher_is_no_host() -> None:
    entry = Listening("eth0", Endpoint("10.0.0.1", 1), 24)
    found = {"a": Found((entry,), 4), LAUNCHER: Found((), 2), "b": Found((), 8)}
    findings = Findings(found, frozenset({("a", "b"), ("a", LAUNCHER)}), {})
    assert findings.hosts == ("a", "b")
    assert findings.addresses("a") == (entry,)
    assert findings.addresses("nobody") == ()
    assert findings.probers("b") == findings.probers(LAUNCHER) == {"a"}
    assert findings.probers("a") == frozenset()


def test_of_hosts_in_use_only_what_concerns_a_newcomer_is_asked() -> None:
    hosts = ["a", "b", "new", "other"]
    assert plan_pairs(hosts, frozenset({"new", "other"})) == plan_pairs(hosts) - {
        ("a", "b"),
        ("b", "a"),
        ("a", LAUNCHER),
        ("b", LAUNCHER),
    }


def test_a_newcomer_among_many_is_tried_by_some_of_them() -> None:
    hosts = name_hosts(1000)
    pairs = plan_pairs(hosts, frozenset(hosts[-1:]))
    assert all(hosts[-1] in pair for pair in pairs)
    assert {(hosts[-1], hosts[0]), (hosts[-1], LAUNCHER)} < pairs
    assert 10 < sum(target == hosts[-1] for _, target in pairs) < 30


def test_a_host_can_be_left_out_of_what_was_found() -> None:
    entry = Listening("eth0", Endpoint("10.0.0.1", 1), 24)
    found = {host: Found((entry,), 4) for host in ("a", "b", "c", LAUNCHER)}
    findings = Findings(found, plan_pairs(["a", "b", "c"]), {"a": [], "b": [], "c": []}).without("b")
    assert findings.hosts == ("a", "c")
    assert findings.pairs == plan_pairs(["a", "c"])
    assert [*findings.proofs] == ["a", "c"]
