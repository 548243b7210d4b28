"""How hosts reach each other and the rendezvous: the hosts of a static job, and those that come one after another.

Their agents report what the test's network lets them prove.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from hvdrun.errors import HostLostEarlyError, LaunchError
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.network_plan import InsideOnlyError, NetworkFacts, NetworkPlan, Route
from hvdrun.network.addresses import list_addresses
from hvdrun.network.connectivity import LAUNCHER
from hvdrun.network.errors import NoAllowedAddressError, NoCommonAddressError, SameMachineError
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.remote import Remote
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.wire.orders import ListAddresses, Order
from tests.hvdrun.played_agent import TUNNEL_PORT, Doors, Machine, ignore
from tests.hvdrun.specs import build_spec, with_fields
from tests.waiting import in_loop

if TYPE_CHECKING:
    from rendezvous.server.server import Server

ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}
needs_network = pytest.mark.skipif(not list_addresses(), reason="this machine has no address but the loopback's")


class Site:
    """A pool, a rendezvous, and the plan of the network between them."""

    def __init__(self, machines: dict[str, Machine]) -> None:
        self.machines = machines
        self.doors = Doors()
        self.tasks = BackgroundTasks()
        self.said: list[str] = []
        self.pool = AgentPool(self.tasks, ignore, lambda host, _: self.plan.forget(host))
        self.plan = NetworkPlan(self.pool, self.said.append)

    async def extend(self, spec: JobSpec, *hosts: str) -> dict[str, Route | LaunchError]:
        """Start the agents of these hosts, and find their ways."""
        for host in hosts:
            self.pool.add(host, self.machines[host])
            await self.pool.open(host)
        return await self.plan.extend(spec, hosts)


@asynccontextmanager
async def at_site(machines: dict[str, Machine]) -> AsyncIterator[Site]:
    site = Site(machines)
    try:
        async with site.tasks:
            await site.plan.open(cast("Server", site.doors))
            yield site
    finally:
        await site.pool.close()


def make_spec(
    *hosts: str, remote: bool = True, elastic: bool = True, script: bool = True, interfaces: tuple[str, ...] = ()
) -> JobSpec:
    return build_spec(
        ("true",),
        1 if elastic else len(hosts),
        tuple(Host(host, 1) for host in hosts),
        Path("/"),
        Elasticity(1, script="./hosts" if script else None) if elastic else None,
        remote=Remote(frozenset(hosts if remote else ()), ("true",), "/usr/bin/python3"),
        interfaces=interfaces,
    )


async def find(agents: dict[str, Machine], *, remote: bool = True) -> tuple[dict[str, Route | LaunchError], Site]:
    """The routes of a static job."""
    async with at_site(agents) as site:
        return await site.extend(make_spec(*agents, remote=remote, elastic=False), *agents), site


@in_loop
async def test_on_this_machine_alone_everything_is_at_the_loopback_address() -> None:
    agent = Machine()
    routes, site = await find({"a": agent}, remote=False)
    assert routes == {"a": Route(LOOPBACK, "", Endpoint(LOOPBACK, 1))}
    assert (site.doors.opened, agent.asked) == ([LOOPBACK], 0)
    assert site.said == [f"the rendezvous listens on {LOOPBACK}:1"]


@in_loop
async def test_this_machine_under_its_name_and_localhost_is_refused() -> None:
    routes, _ = await find({"localhost": Machine(), "vm": Machine()}, remote=False)
    assert isinstance(routes["localhost"], Route)
    assert isinstance(refused := routes["vm"], SameMachineError)
    assert str(refused).startswith("localhost and vm are one machine, the one at 127.0.0.1, ")


@in_loop
async def test_loopback_names_stand_for_several_hosts() -> None:
    routes, _ = await find({"localhost": Machine(), "127.0.0.1": Machine(), "::1": Machine()}, remote=False)
    assert all(isinstance(route, Route) for route in routes.values())


@needs_network
@in_loop
async def test_hosts_that_reach_the_launcher_receive_an_address_of_it() -> None:
    agents = {host: Machine(ADDRESSES[host]) for host in "ab"}
    routes, site = await find(agents)
    loopback, own = site.doors.opened
    assert loopback == LOOPBACK
    assert own in {place.address for place in list_addresses()}
    assert routes == {host: Route(ADDRESSES[host], "eth7", Endpoint(own, 2)) for host in "ab"}
    said = site.said[2:]
    assert [line.partition(":")[0] for line in said] == ["a", "b"]
    assert said[0].endswith(f"; it reaches the rendezvous at {Endpoint(own, 2)}")
    assert agents["a"].tunnelled == []


@needs_network
@in_loop
async def test_a_host_that_does_not_reach_the_launcher_uses_its_ssh_connection() -> None:
    agents = {"a": Machine(ADDRESSES["a"]), "b": Machine(ADDRESSES["b"], unreached=[LAUNCHER])}
    routes, site = await find(agents)
    assert routes["b"] == Route(ADDRESSES["b"], "eth7", Endpoint(LOOPBACK, TUNNEL_PORT))
    assert isinstance(routes["a"], Route)
    assert routes["a"].server.address != LOOPBACK
    assert agents["b"].tunnelled == [1]
    facts = site.plan.facts
    assert NetworkFacts.decode(facts.encode()) == facts
    assert facts.tunnelled == {"b"}
    site.plan.forget("b")
    assert site.plan.facts.tunnelled == frozenset()
    assert "; it reaches the rendezvous through its ssh connection" in " ".join(site.said)


@in_loop
async def test_all_hosts_without_a_way_to_the_rendezvous_are_named() -> None:
    cut_off = {"a": "a has no tunnel.", "b": "b has no tunnel."}
    agents = {host: Machine(ADDRESSES[host], unreached=[LAUNCHER], tunnel_failure=cut_off[host]) for host in "ab"}
    answers, _ = await find(agents)
    assert {host: str(answer) for host, answer in answers.items()} == cut_off


@pytest.mark.parametrize(
    ("special", "error"), [({"unreached": "a"}, NoCommonAddressError), ({"answers": False}, HostLostEarlyError)]
)
@in_loop
async def test_where_all_hosts_are_needed_an_unusable_host_is_the_answer_for_all(
    special: dict[str, Any], error: type[LaunchError]
) -> None:
    answers, _ = await find(
        {"a": Machine("192.0.2.1"), "b": Machine("192.0.2.2"), "c": Machine("192.0.2.3", **special)}
    )
    (answer,) = set(answers.values())
    assert ([*answers], type(answer)) == ([*"abc"], error)


@in_loop
async def test_hosts_that_come_later_reach_the_others_where_they_are_known() -> None:
    async with at_site(
        {"a": Machine("192.0.2.1", "198.51.100.1"), "b": Machine("192.0.2.2"), "c": Machine("192.0.2.3")}
    ) as site:
        first = await site.extend(make_spec("a", "b"), "a", "b")
        assert [route.address for route in first.values() if isinstance(route, Route)] == ["192.0.2.1", "192.0.2.2"]
        later = await site.extend(make_spec("a", "b", "c"), "c")
        assert later.keys() == {"c"}
        assert isinstance(later["c"], Route)
        assert (later["c"].address, later["c"].interface) == ("192.0.2.3", "eth7")
        assert [machine.asked for machine in site.machines.values()] == [2, 2, 1]
        assert len(set(site.doors.opened)) == len(site.doors.opened)  # no door is opened twice


@pytest.mark.parametrize(
    ("special", "first", "newcomers", "answers"),
    [
        ({"a": {"unreached": "c"}}, "ab", "cd", [NoCommonAddressError, Route]),
        ({"b": {"unreached": "ac"}}, "", "abc", [Route, NoCommonAddressError, Route]),
        ({"b": {"answers": False}}, "a", "bc", [HostLostEarlyError, Route]),
    ],
    ids=["not reached by one of the others", "hinders the first hosts", "its agent ends meanwhile"],
)
@in_loop
async def test_a_newcomer_that_cannot_be_used_is_left_out_and_the_rest_is_not(
    special: dict[str, dict[str, Any]], first: str, newcomers: str, answers: list[type]
) -> None:
    hosts = {host: Machine(f"192.0.2.{number}", **special.get(host, {})) for number, host in enumerate("abcd", 1)}
    async with at_site(hosts) as site:
        await site.extend(make_spec(*first), *first)
        found = await site.extend(make_spec(*first, *newcomers), *newcomers)
        assert [type(found[host]) for host in newcomers] == answers


@in_loop
async def test_a_host_in_use_that_is_lost_meanwhile_holds_no_other_up() -> None:
    async with at_site({"a": Machine("192.0.2.1"), "b": Machine("192.0.2.2"), "c": Machine("192.0.2.3")}) as site:
        spec = make_spec("a", "b", "c")
        await site.extend(spec, "a", "b")
        site.machines["b"].answers = False
        assert isinstance((await site.extend(spec, "c"))["c"], Route)


@in_loop
async def test_another_agent_of_a_host_has_no_part_in_the_check_of_the_former_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    next_agent = Machine("192.0.2.1")
    async with at_site({"a": Machine("192.0.2.1"), "b": Machine("192.0.2.2")}) as site:
        send = site.machines["b"].send

        def replace_a(order: Order) -> None:
            send(order)
            if site.machines["b"].asked == 1 and isinstance(order, ListAddresses):
                site.pool.abandon("a")
                site.pool.add("a", next_agent)

        monkeypatch.setattr(site.machines["b"], "send", replace_a)
        found = await site.extend(make_spec("a", "b"), "a", "b")
        assert [type(found[host]) for host in "ab"] == [HostLostEarlyError, Route]
        assert next_agent.orders == []


@needs_network
@in_loop
async def test_a_newcomer_that_is_lost_while_the_rendezvous_opens_a_port_holds_no_later_one_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with at_site({host: Machine(f"192.0.2.{number}") for number, host in enumerate("abc", 1)}) as site:
        open_door = site.doors.open

        async def lose(address: str, port: int = 0) -> int:
            site.plan.forget("b")
            site.pool.abandon("b")
            return await open_door(address, port)

        monkeypatch.setattr(site.doors, "open", lose)
        found = await site.extend(make_spec("a", "b"), "a", "b")
        assert [type(found[host]) for host in "ab"] == [Route, HostLostEarlyError]
        assert isinstance((await site.extend(make_spec("a", "c"), "c"))["c"], Route)


@in_loop
async def test_two_names_of_one_machine_are_not_both_taken() -> None:
    async with at_site({"a": Machine("192.0.2.1"), "b": Machine("192.0.2.1")}) as site:
        answers = await site.extend(make_spec("a", "b"), "a", "b")
        assert isinstance(answers["a"], Route)
        assert isinstance(answers["b"], SameMachineError)


@in_loop
async def test_a_host_alone_has_an_address_for_later_hosts() -> None:
    async with at_site({"a": Machine("192.0.2.1"), "b": Machine("192.0.2.2", unreached=(LAUNCHER,))}) as site:
        first = await site.extend(make_spec("a"), "a")
        assert isinstance(first["a"], Route)
        assert first["a"].address == "192.0.2.1"
        second = await site.extend(make_spec("a", "b"), "b")
        assert isinstance(second["b"], Route)
        assert second["b"].server == Endpoint(LOOPBACK, TUNNEL_PORT)


@pytest.mark.parametrize(
    ("spec", "is_inside"),
    [
        (make_spec("localhost", "127.0.0.2", remote=False), True),
        (make_spec("here", remote=False, script=False), True),
        (make_spec("here", remote=False), False),
        (make_spec("localhost", remote=False, interfaces=("eth*",)), False),
        (make_spec("there", script=False), False),
    ],
)
@in_loop
async def test_a_job_that_stays_on_this_machine_is_not_checked(spec: JobSpec, *, is_inside: bool) -> None:
    host = spec.workers.hosts[0].name
    async with at_site({host: Machine("192.0.2.1")}) as site:
        (answer,) = (await site.extend(spec, host)).values()
        assert bool(site.machines[host].asked) is not is_inside
        assert isinstance(answer, Route)
        assert (answer.address == LOOPBACK) is is_inside


@pytest.mark.parametrize(
    ("names", "is_allowed"),
    [(("nosuch0",), False), (("240.0.0.0/8",), False), (("nosuch0", "lo"), True), (("127.0.0.0/8",), True)],
)
@in_loop
async def test_an_interface_that_this_machine_lacks_is_refused_also_if_the_job_stays_on_it(
    names: tuple[str, ...], *, is_allowed: bool
) -> None:
    async with at_site({"a": Machine()}) as site:
        (answer,) = (await site.extend(make_spec("a", remote=False, elastic=False, interfaces=names), "a")).values()
        assert isinstance(answer, Route if is_allowed else NoAllowedAddressError)


@in_loop
async def test_no_other_host_can_join_workers_that_only_this_machine_reaches() -> None:
    async with at_site({"localhost": Machine("192.0.2.1"), "b": Machine("192.0.2.2")}) as site:
        spec = make_spec("localhost", remote=False)
        await site.extend(spec, "localhost")
        wider = with_fields(
            spec, hosts=(*spec.workers.hosts, Host("b", 1)), remote=Remote(frozenset({"b"}), ("true",), "p")
        )
        answers = await site.extend(wider, "b")
        assert isinstance(answers["b"], InsideOnlyError)
        site.plan.forget("localhost")
        assert isinstance((await site.plan.extend(wider, ["b"]))["b"], Route)


@in_loop
async def test_networks_that_the_user_names_hold_for_newcomers() -> None:
    async with at_site({"a": Machine("192.0.2.1"), "b": Machine("198.51.100.2")}) as site:
        spec = make_spec("a", interfaces=("192.0.2.0/24",))
        assert isinstance((await site.extend(spec, "a"))["a"], Route)
        answers = await site.extend(make_spec("a", "b", interfaces=("192.0.2.0/24",)), "b")
        assert isinstance(answers["b"], NoAllowedAddressError)


@in_loop
async def test_another_server_of_the_job_listens_where_the_former_one_did_and_keeps_the_routes() -> None:
    machines = {"a": Machine("192.0.2.1"), "b": Machine("192.0.2.2")}
    async with at_site(machines) as site:
        routes = await site.extend(make_spec("a", "b"), "a", "b")
        facts = NetworkFacts.decode(site.plan.facts.encode())
    assert facts == site.plan.facts
    assert facts.routes == routes

    doors = Doors()
    plan = NetworkPlan(site.pool, site.said.append, reserve=lambda _, port: port or 4711)
    await plan.open(cast("Server", doors), facts)
    assert plan.facts == facts
    assert doors.opened == [*facts.ports]


@in_loop
async def test_a_host_that_the_former_server_has_lost_keeps_no_other_one_from_the_next() -> None:
    machines = {"a": Machine("192.0.2.1"), "b": Machine("192.0.2.2"), "c": Machine("192.0.2.3")}
    async with at_site(machines) as site:
        await site.extend(make_spec("a", "b"), "a", "b")
        kept = site.plan.facts
        site.pool.abandon("b")
        site.plan = NetworkPlan(site.pool, site.said.append)
        await site.plan.open(cast("Server", Doors()), kept)
        answers = await site.extend(make_spec("a", "b", "c"), "c")
        assert isinstance(answers["c"], Route)


def test_the_facts_of_a_server_that_kept_no_tunnels_are_read() -> None:
    text = json.dumps({"routes": {"a": ["192.0.2.1", "eth0", "127.0.0.1", 7]}, "ports": {}, "is_inside": False})
    facts = NetworkFacts.decode(text.encode())
    assert facts == NetworkFacts({"a": Route("192.0.2.1", "eth0", Endpoint(LOOPBACK, 7))}, {}, is_inside=False)


@in_loop
async def test_a_port_is_reserved_at_each_address() -> None:
    async with at_site({}) as site:
        plan = NetworkPlan(site.pool, site.said.append, reserve=lambda _, port: port or 4711)
        await plan.open(cast("Server", Doors()))
        assert plan.facts == NetworkFacts({}, {"127.0.0.1": 4711}, is_inside=False)
