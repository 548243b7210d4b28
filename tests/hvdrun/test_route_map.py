"""The ways of hosts that come one after the other; their agents tell what the test's network lets them prove."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.elasticity import Elasticity
from hvdrun.errors import HostLostEarlyError, LaunchError
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec, RemoteSide
from hvdrun.network.errors import NoAllowedAddressError, NoCommonAddressError, SameMachineError
from hvdrun.network.findings import LAUNCHER
from hvdrun.route_map import InsideOnlyError, RouteMap
from hvdrun.routes import LOOPBACK, Route
from rendezvous.core.model import Endpoint, Host
from rendezvous.orders import Found, Hello, Listening, Look, Order, Probe, Probed, Proof, Telling

LIMIT_SECONDS = 20.0
TUNNEL_PORT = 7000


class Machine:
    """A transport whose agent has these addresses, and proves whatever the network allows.

    unreached: the names of those it does not get to, LAUNCHER among them.
    """

    def __init__(self, *addresses: str, unreached: tuple[str, ...] = (), answers: bool = True) -> None:
        self.addresses = addresses
        self.unreached = unreached
        self.answers = answers
        self.asked = 0
        self._told: asyncio.Queue[Telling | None] = asyncio.Queue()

    async def open(self) -> None:
        """See `Transport`."""

    def send(self, order: Order) -> None:
        """See `Transport`."""
        match order:
            case Look() if not self.answers:
                self._told.put_nowait(None)
            case Look():
                self.asked += 1
                listening = tuple(Listening("eth7", Endpoint(address, 1), 24) for address in self.addresses)
                self._told.put_nowait(Found(listening, 1))
            case Probe(targets):
                proofs = (
                    Proof(target.host, target.endpoint.address, self.addresses[0], 1.0)
                    for target in targets
                    if target.host not in self.unreached
                )
                self._told.put_nowait(Probed(tuple(proofs)))
            case _:
                pass

    async def tellings(self) -> AsyncIterator[Telling]:
        """See `Transport`."""
        yield Hello("0", "host", "3.11")
        while (telling := await self._told.get()) is not None:
            yield telling

    async def wait(self) -> str:
        """See `Transport`."""
        return "its agent ended"

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        del port
        return TUNNEL_PORT

    async def abandon(self) -> None:
        """See `Transport`."""

    async def close(self) -> None:
        """See `Transport`."""


class Site:
    """A fleet, a rendezvous that listens at the ports 1, 2, 3, and the map between them."""

    def __init__(self, **machines: Machine) -> None:
        self.machines = machines
        self.opened: list[str] = []
        self.lost: list[str] = []
        self.fleet = Fleet({}, self._ignore, lambda host, _: self.lost.append(host))
        self.map = RouteMap(self.fleet, self, lambda _: None)

    async def open(self, address: str) -> int:
        """See `routes.Doors`."""
        self.opened.append(address)
        return len(self.opened)

    async def extend(self, spec: JobSpec, *hosts: str) -> dict[str, Route | LaunchError]:
        """Start the agents of these hosts, and find their ways."""
        for host in hosts:
            self.fleet.add(host, self.machines[host])
            await self.fleet.open_one(host)
        return await self.map.extend(spec, hosts)

    async def _ignore(self, _: Telling) -> None: ...


def make_spec(*hosts: str, remote: bool = True, script: bool = True, interfaces: tuple[str, ...] = ()) -> JobSpec:
    side = RemoteSide(frozenset(hosts if remote else ()), ("true",), "/usr/bin/python3")
    return JobSpec(
        ("true",),
        1,
        tuple(Host(host, 1) for host in hosts),
        Path("/"),
        Elasticity(1, script="./hosts" if script else None),
        remote=side,
        interfaces=interfaces,
    )


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_hosts_that_come_later_reach_the_others_where_they_are_known() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1", "198.51.100.1"), b=Machine("192.0.2.2"), c=Machine("192.0.2.3"))

        try:
            first = await site.extend(make_spec("a", "b"), "a", "b")
            assert [route.address for route in first.values() if isinstance(route, Route)] == ["192.0.2.1", "192.0.2.2"]
            later = await site.extend(make_spec("a", "b", "c"), "c")
            assert later.keys() == {"c"}
            assert isinstance(later["c"], Route)
            assert (later["c"].address, later["c"].interface) == ("192.0.2.3", "eth7")
            assert [machine.asked for machine in site.machines.values()] == [2, 2, 1]
            assert len(set(site.opened)) == len(site.opened)  # no door is opened twice
        finally:
            await site.fleet.close()

    run(scenario)


def test_a_newcomer_that_one_of_the_others_does_not_reach_is_left_out_and_the_rest_is_not() -> None:
    async def scenario() -> None:
        site = Site(
            a=Machine("192.0.2.1", unreached=("c",)),
            b=Machine("192.0.2.2"),
            c=Machine("192.0.2.3"),
            d=Machine("192.0.2.4"),
        )
        try:
            await site.extend(make_spec("a", "b"), "a", "b")
            answers = await site.extend(make_spec("a", "b", "c", "d"), "c", "d")
            assert isinstance(answers["c"], NoCommonAddressError)
            assert "a does not reach c" in str(answers["c"])
            assert isinstance(answers["d"], Route)
        finally:
            await site.fleet.close()

    run(scenario)


def test_of_the_first_hosts_too_only_who_hinders_is_left_out() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1"), b=Machine("192.0.2.2", unreached=("a", "c")), c=Machine("192.0.2.3"))
        try:
            answers = await site.extend(make_spec("a", "b", "c"), "a", "b", "c")
            assert [type(answers[host]) for host in "abc"] == [Route, NoCommonAddressError, Route]
        finally:
            await site.fleet.close()

    run(scenario)


def test_a_newcomer_whose_agent_ends_meanwhile_is_left_out() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1"), b=Machine("192.0.2.2", answers=False), c=Machine("192.0.2.3"))
        try:
            await site.extend(make_spec("a"), "a")
            answers = await site.extend(make_spec("a", "b", "c"), "b", "c")
            assert isinstance(answers["b"], HostLostEarlyError)
            assert isinstance(answers["c"], Route)
        finally:
            await site.fleet.close()

    run(scenario)


def test_a_host_in_use_that_is_lost_meanwhile_holds_nobody_up() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1"), b=Machine("192.0.2.2"), c=Machine("192.0.2.3"))
        spec = make_spec("a", "b", "c")
        try:
            await site.extend(spec, "a", "b")
            site.machines["b"].answers = False
            site.fleet.add("c", site.machines["c"])
            await site.fleet.open_one("c")
            extending = asyncio.create_task(site.map.extend(spec, ["c"]))
            while not site.lost:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0)
            site.map.forget("b")
            assert isinstance((await extending)["c"], Route)
        finally:
            await site.fleet.close()

    run(scenario)


def test_two_names_of_one_machine_are_not_both_taken() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1"), b=Machine("192.0.2.1"))
        try:
            answers = await site.extend(make_spec("a", "b"), "a", "b")
            assert isinstance(answers["a"], Route)
            assert isinstance(answers["b"], SameMachineError)
        finally:
            await site.fleet.close()

    run(scenario)


def test_a_host_alone_has_an_address_for_those_who_come_later() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1"), b=Machine("192.0.2.2", unreached=(LAUNCHER,)))
        try:
            first = await site.extend(make_spec("a"), "a")
            assert isinstance(first["a"], Route)
            assert first["a"].address == "192.0.2.1"
            second = await site.extend(make_spec("a", "b"), "b")
            assert isinstance(second["b"], Route)
            assert second["b"].server == Endpoint(LOOPBACK, TUNNEL_PORT)
        finally:
            await site.fleet.close()

    run(scenario)


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
def test_a_job_that_stays_on_this_machine_is_not_surveyed(spec: JobSpec, *, is_inside: bool) -> None:
    async def scenario() -> None:
        host = spec.hosts[0].name
        site = Site(**{host: Machine("192.0.2.1")})
        try:
            (answer,) = (await site.extend(spec, host)).values()
            assert bool(site.machines[host].asked) is not is_inside
            assert isinstance(answer, Route)
            assert (answer.address == LOOPBACK) is is_inside
        finally:
            await site.fleet.close()

    run(scenario)


def test_no_other_host_can_join_workers_that_only_this_machine_reaches() -> None:
    async def scenario() -> None:
        site = Site(localhost=Machine("192.0.2.1"), b=Machine("192.0.2.2"))
        try:
            spec = make_spec("localhost", remote=False)
            await site.extend(spec, "localhost")
            wider = replace(
                spec, hosts=(*spec.hosts, Host("b", 1)), remote=RemoteSide(frozenset({"b"}), ("true",), "p")
            )
            answers = await site.extend(wider, "b")
            assert isinstance(answers["b"], InsideOnlyError)
            site.map.forget("localhost")
            assert isinstance((await site.map.extend(wider, ["b"]))["b"], Route)
        finally:
            await site.fleet.close()

    run(scenario)


def test_networks_that_the_user_names_hold_for_newcomers() -> None:
    async def scenario() -> None:
        site = Site(a=Machine("192.0.2.1"), b=Machine("198.51.100.2"))
        try:
            spec = make_spec("a", interfaces=("192.0.2.0/24",))
            assert isinstance((await site.extend(spec, "a"))["a"], Route)
            answers = await site.extend(make_spec("a", "b", interfaces=("192.0.2.0/24",)), "b")
            assert isinstance(answers["b"], NoAllowedAddressError)
        finally:
            await site.fleet.close()

    run(scenario)
