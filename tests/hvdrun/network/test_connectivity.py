"""A check of real listeners on this machine, each of them a host of its own name; and one machine's part in it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.network.choice import choose
from hvdrun.network.connectivity import (
    ALL_PAIRS_LIMIT,
    LAUNCHER,
    Connectivity,
    Participant,
    check_connectivity,
    plan_pairs,
)
from hvdrun.network.errors import ConnectivityTimeoutError, NoAllowedAddressError
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import (
    Addresses,
    AgentMessage,
    ListAddresses,
    Listening,
    Order,
    ProbePeers,
    ProbeResults,
    Remark,
)
from tests.hvdrun.network.loopback import loopback_listed
from tests.waiting import LIMIT_SECONDS

ENOUGH_SECONDS = 5.0  # for an agent on this machine


class Agents:
    """What the agents of some hosts do during a check; `ignore` says what they do not even hear."""

    def __init__(self, hosts: Sequence[str], ignore: Callable[[str, Order], bool] = lambda *_: False) -> None:
        self._messages: dict[str, asyncio.Queue[AgentMessage]] = {host: asyncio.Queue() for host in hosts}
        self._participants: dict[str, Participant] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._ignore = ignore
        self.tokens: set[bytes] = set()

    def send(self, host: str, order: Order) -> None:
        """An order comes to a host."""
        if not self._ignore(host, order):
            task = asyncio.create_task(self._obey(host, order))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    def report(self, host: str, message: AgentMessage) -> None:
        """A host sends a message."""
        self._messages[host].put_nowait(message)

    async def receive(self, host: str) -> AgentMessage:
        """The next message of a host."""
        return await self._messages[host].get()

    def close(self) -> None:
        """All agents go."""
        for participant in self._participants.values():
            participant.close()

    async def _obey(self, host: str, order: Order) -> None:
        match order:
            case ListAddresses(token, name):
                self.tokens.add(token)
                self._participants[host] = Participant(token, name)
                self.report(host, Remark("an unexpected remark"))
                self.report(host, await self._participants[host].list_addresses())
            case ProbePeers(targets):
                self.report(host, await self._participants[host].probe(targets))
            case _:
                raise AssertionError(order)


def run_check(
    hosts: Sequence[str],
    ignore: Callable[[str, Order], bool] = lambda *_: False,
    limit_seconds: float = LIMIT_SECONDS,
    settled: Mapping[str, str] | None = None,
) -> Connectivity:
    async def run() -> Connectivity:
        with ExitStack() as stack, loopback_listed():
            agents = Agents(hosts, ignore)
            stack.callback(agents.close)
            async with asyncio.timeout(LIMIT_SECONDS):
                connectivity = await check_connectivity(
                    hosts, agents.send, agents.receive, settled=settled, limit_seconds=limit_seconds
                )
            assert [len(token) for token in agents.tokens] == [32]
            return connectivity

    return asyncio.run(run())


def test_every_host_proves_each_requested_address() -> None:
    connectivity = run_check(("b", "a", "c"))
    assert connectivity.hosts == ("b", "a", "c")
    for host in connectivity.hosts:
        proven = {(proof.host, proof.address) for proof in connectivity.proofs[host]}
        assert proven == {
            (other, entry.endpoint.address)
            for other in (*connectivity.hosts, LAUNCHER)
            if other != host
            for entry in connectivity.addresses(other)
        }
    choice = choose(connectivity)
    assert [*choice.hosts] == ["b", "a", "c"]
    assert None not in choice.launcher.values()


def test_a_newcomer_and_the_hosts_in_use_prove_each_other_at_the_known_address() -> None:
    connectivity = run_check(("a", "b", "new"), settled={"a": "127.0.0.1", "b": "127.0.0.1"})
    for host in ("a", "b"):
        assert [entry.endpoint.address for entry in connectivity.addresses(host)] == ["127.0.0.1"]
        assert {proof.host for proof in connectivity.proofs[host]} == {"new"}
    assert {proof.host for proof in connectivity.proofs["new"]} == {"a", "b", LAUNCHER}
    choice = choose(connectivity)
    assert {choice.hosts[host].address for host in ("a", "b")} == {"127.0.0.1"}
    assert choice.launcher["new"] is not None


def test_late_answers_to_an_earlier_check_do_not_count() -> None:
    async def run() -> Connectivity:
        agents = Agents(("a", "b"))
        for message in (Addresses((), b"earlier"), ProbeResults((), b"earlier")):
            agents.report("a", message)
        try:
            with loopback_listed():
                return await check_connectivity(("a", "b"), agents.send, agents.receive)
        finally:
            agents.close()

    connectivity = asyncio.run(run())
    assert {proof.host for proof in connectivity.proofs["a"]} == {"b", LAUNCHER}
    assert {proof.host for proof in connectivity.proofs["b"]} == {"a", LAUNCHER}


def test_a_host_in_use_that_lost_its_address_cannot_be_joined() -> None:
    connectivity = run_check(("a", "new"), settled={"a": "192.0.2.1"})
    with pytest.raises(NoAllowedAddressError) as caught:
        choose(connectivity)
    assert caught.value.hosts == ("a",)


def test_no_host_needs_no_check() -> None:
    agents = Agents(())
    assert asyncio.run(check_connectivity((), agents.send, agents.receive)).proofs == {}


@pytest.mark.parametrize(
    ("kind", "task"), [(ListAddresses, "list its addresses"), (ProbePeers, "report what it reaches")]
)
def test_hosts_that_do_not_answer_in_time_are_named(kind: type[Order], task: str) -> None:
    with pytest.raises(ConnectivityTimeoutError, match=f"b, d did not {task}") as caught:
        run_check(("a", "b", "c", "d"), lambda host, order: host in "bd" and isinstance(order, kind), ENOUGH_SECONDS)
    assert caught.value.hosts == ("b", "d")


def test_an_agent_that_is_lost_ends_the_check_with_its_own_error() -> None:
    async def run() -> None:
        async def receive(host: str) -> AgentMessage:
            if host == "b":
                raise ConnectionError("b is gone")
            return await asyncio.Future[AgentMessage]()

        async with asyncio.timeout(LIMIT_SECONDS):
            await check_connectivity(("a", "b"), lambda *_: None, receive)

    with pytest.raises(ConnectionError, match="b is gone"):
        asyncio.run(run())


def test_no_host_listens_on_loopback_in_earnest() -> None:
    async def look() -> Addresses:
        participant = Participant(b"token", "a")
        try:
            return await participant.list_addresses()
        finally:
            participant.close()

    found = asyncio.run(look())
    assert not {"127.0.0.1", "::1"} & {listening.endpoint.address for listening in found.addresses}


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
def test_of_many_hosts_each_tries_few_peers_and_is_tried_by_several(count: int) -> None:
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
    found = {"a": Addresses((entry,)), LAUNCHER: Addresses(()), "b": Addresses(())}
    connectivity = Connectivity(found, frozenset({("a", "b"), ("a", LAUNCHER)}), {})
    assert connectivity.hosts == ("a", "b")
    assert connectivity.addresses("a") == (entry,)
    assert connectivity.addresses("unknown") == ()
    assert connectivity.probers("b") == connectivity.probers(LAUNCHER) == {"a"}
    assert connectivity.probers("a") == frozenset()


def test_among_hosts_in_use_only_pairs_with_a_newcomer_are_tried() -> None:
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
    found = {host: Addresses((entry,)) for host in ("a", "b", "c", LAUNCHER)}
    connectivity = Connectivity(found, plan_pairs(["a", "b", "c"]), {"a": [], "b": [], "c": []}).without("b")
    assert connectivity.hosts == ("a", "c")
    assert connectivity.pairs == plan_pairs(["a", "c"])
    assert [*connectivity.proofs] == ["a", "c"]
