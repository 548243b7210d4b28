"""The ways between hosts, found with agents that tell what a network of the test's own would let them prove."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from hvdrun import __version__
from hvdrun import routes as routes_module
from hvdrun.errors import HostLostEarlyError, HostsFailedError, LaunchError
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec, RemoteSide
from hvdrun.network.findings import LAUNCHER
from hvdrun.network.interfaces import list_addresses
from hvdrun.routes import LOOPBACK, Route, find_routes
from hvdrun.transport.ssh.failures import VersionMismatchError
from rendezvous.core.model import Endpoint, Host
from rendezvous.orders import Found, Hello, Listening, Look, Order, Probe, Probed, Proof, Telling

LIMIT_SECONDS = 20.0
TUNNEL_PORT = 7000
HELLO = Hello(__version__, "host", "3.11")
ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}
needs_network = pytest.mark.skipif(not list_addresses(), reason="this machine has no address but the loopback's")


class Agent:
    """A transport whose agent says what the test's network lets it.

    reaches: whether it gets to each of the others, LAUNCHER among them.
    """

    def __init__(
        self,
        host: str,
        *,
        hello: Telling | None = HELLO,
        reaches: Callable[[str], bool] = lambda _: True,
        tunnel: LaunchError | None = None,
    ) -> None:
        self._host = host
        self._reaches = reaches
        self._tunnel = tunnel
        self._told: asyncio.Queue[Telling | None] = asyncio.Queue()
        self.tunnelled: list[int] = []
        self._told.put_nowait(hello)

    async def open(self) -> None:
        """See `Transport`."""

    def send(self, order: Order) -> None:
        """See `Transport`."""
        match order:
            case Look():
                listening = Listening("eth7", Endpoint(ADDRESSES[self._host], 1), 24)
                self._told.put_nowait(Found((listening,), 1))
            case Probe(targets):
                proofs = (
                    Proof(target.host, target.endpoint.address, ADDRESSES[self._host], 1.0)
                    for target in targets
                    if self._reaches(target.host)
                )
                self._told.put_nowait(Probed(tuple(proofs)))
            case _:
                pass

    async def tellings(self) -> AsyncIterator[Telling]:
        """See `Transport`."""
        while (telling := await self._told.get()) is not None:
            yield telling

    async def wait(self) -> str:
        """See `Transport`."""
        return "its agent ended"

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        if self._tunnel is not None:
            raise self._tunnel
        self.tunnelled.append(port)
        return TUNNEL_PORT

    async def abandon(self) -> None:
        """See `Transport`."""

    async def close(self) -> None:
        """See `Transport`."""


class Doors:
    """A rendezvous that listens at the ports 1, 2, 3."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    async def open(self, address: str) -> int:
        """See `routes.Doors`."""
        self.opened.append(address)
        return len(self.opened)


def make_spec(*hosts: str, remote: bool = True) -> JobSpec:
    side = RemoteSide(frozenset(hosts), ("true",), "/usr/bin/python3") if remote else RemoteSide()
    listed = tuple(Host(host, 1) for host in hosts)
    return JobSpec(command=("true",), size=len(hosts), hosts=listed, directory=Path("/"), remote=side)


def find(agents: Mapping[str, Agent], doors: Doors, *, remote: bool = True) -> tuple[dict[str, Route], list[str]]:
    """The routes, and what was said of them."""
    said: list[str] = []

    async def ignore(_: Telling) -> None: ...

    async def scenario() -> dict[str, Route]:
        fleet = Fleet(agents, ignore, lambda *_: None)
        await fleet.open()
        try:
            return await find_routes(make_spec(*agents, remote=remote), fleet, doors, said.append)
        finally:
            await fleet.close()

    return asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS)), said


def test_on_this_machine_alone_everything_is_at_the_loopback_address_and_nobody_is_asked() -> None:
    doors = Doors()
    routes, said = find({"a": Agent("a", hello=None)}, doors, remote=False)
    assert routes == {"a": Route(LOOPBACK, "", Endpoint(LOOPBACK, 1))}
    assert (doors.opened, said) == ([LOOPBACK], [])


@needs_network
def test_hosts_that_reach_the_launcher_are_told_an_address_of_it() -> None:
    doors = Doors()
    agents = {host: Agent(host) for host in "ab"}
    routes, said = find(agents, doors)
    loopback, own = doors.opened
    assert loopback == LOOPBACK
    assert own in {place.address for place in list_addresses()}
    assert routes == {host: Route(ADDRESSES[host], "eth7", Endpoint(own, 2)) for host in "ab"}
    assert [line.partition(":")[0] for line in said] == ["a", "b"]
    assert said[0].endswith(f"; it reaches the rendezvous at {Endpoint(own, 2)}")
    assert agents["a"].tunnelled == []


@needs_network
def test_a_host_that_does_not_comes_through_its_ssh_connection() -> None:
    doors = Doors()
    agents = {"a": Agent("a"), "b": Agent("b", reaches=lambda host: host != LAUNCHER)}
    routes, said = find(agents, doors)
    assert routes["b"] == Route(ADDRESSES["b"], "eth7", Endpoint(LOOPBACK, TUNNEL_PORT))
    assert routes["a"].server.address != LOOPBACK
    assert agents["b"].tunnelled == [1]
    assert said[1].endswith("; it reaches the rendezvous through its ssh connection")


def test_all_hosts_without_a_way_to_the_rendezvous_are_named() -> None:
    agents = {
        host: Agent(host, reaches=lambda other: other != LAUNCHER, tunnel=LaunchError(f"{host} has no tunnel."))
        for host in "ab"
    }
    with pytest.raises(HostsFailedError) as caught:
        find(agents, Doors())
    assert caught.value.lines == ("2 of 2 hosts cannot be used:", "a has no tunnel.", "b has no tunnel.")


def test_all_hosts_with_another_version_are_named() -> None:
    agents = {host: Agent(host, hello=Hello("0.0.1", "host", "3.11")) for host in "ab"}
    with pytest.raises(HostsFailedError) as caught:
        find(agents, Doors())
    first, second = caught.value.failures
    assert isinstance(first, VersionMismatchError)
    assert (first.host, first.theirs, first.ours) == ("a", "0.0.1", __version__)
    assert isinstance(second, VersionMismatchError)
    assert second.host == "b"


def test_an_agent_that_ends_or_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostLostEarlyError, match="'b' was lost before the job began: its agent ended"):
        find({"a": Agent("a"), "b": Agent("b", hello=None)}, Doors())
    monkeypatch.setattr(routes_module, "HELLO_SECONDS", 0.05)
    silent = {"a": Agent("a", hello=Found((), 1)), "b": Agent("b")}
    with pytest.raises(LaunchError, match=r"^the agent on the host 'a' said nothing within 0\.05 s\.$"):
        find(silent, Doors())
