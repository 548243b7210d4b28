"""The addresses at which the hosts of a job reach each other and the rendezvous.

The first hosts are checked together. Between a later host and the hosts in use, each must reach the other, at the
addresses that are in use already. If all hosts are this machine, the job stays on the loopback interface, and needs no
connectivity check.
"""

import asyncio
import ipaddress
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Self

from hvdrun.errors import HostLostEarlyError, HostLostError, LaunchError
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.model import LOOPBACK, Endpoint

if TYPE_CHECKING:
    from hvdrun.network.choice import Choice
    from hvdrun.network.connectivity import Connectivity
    from rendezvous.server.server import Server


@dataclass(frozen=True, slots=True)
class Route:
    """The addresses of one host.

    address: at which the workers of the other hosts reach this host.
    interface: the network interface of the host that has this address; "" for loopback.
    server: where this host reaches the rendezvous.
    """

    address: str
    interface: str
    server: Endpoint


Answer = Route | LaunchError


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What another server of the job needs of the network.

    routes: of the hosts in use.
    ports: at which the rendezvous listens, by address.
    is_inside: all hosts are this machine, on the loopback interface.
    tunnelled: the hosts that reach the rendezvous by a port of their own loopback address.
    """

    routes: Mapping[str, Route]
    ports: Mapping[str, int]
    is_inside: bool
    tunnelled: frozenset[str] = frozenset()

    def encode(self) -> bytes:
        """As JSON."""
        routes = {host: (each.address, each.interface, *astuple(each.server)) for host, each in self.routes.items()}
        kept = {"routes": routes, "ports": dict(self.ports), "is_inside": self.is_inside}
        return json.dumps({**kept, "tunnelled": sorted(self.tunnelled)}).encode()

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """The facts that `encode` has written."""
        found = json.loads(text)
        routes = {
            host: Route(address, interface, Endpoint(server, port))
            for host, (address, interface, server, port) in found["routes"].items()
        }
        return cls(routes, found["ports"], found["is_inside"], frozenset(found.get("tunnelled", ())))


class InsideOnlyError(LaunchError):
    """A host cannot join, because only this machine reaches the workers of the job.

    Cause: The first hosts were all this machine, so the workers meet on its loopback interface.
    Remedy: Name this machine as other hosts know it, or give `--network-interfaces`.
    """

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the host {host!r} cannot join a job that began on this machine alone, at {LOOPBACK}: name this machine "
            "as other hosts know it, and not localhost, or give --network-interfaces."
        )
        self.host = host


class NetworkPlan:
    """The routes of the hosts that are in use, for one event loop; one caller at a time extends it.

    Args:
        pool: the agents of the hosts.
        verbose: prints a sentence with -v.
        coming: lists the named hosts for which the lookup, whether they are this machine, is not finished.
        reserve: takes an address, and the port there that the rendezvous had, or 0; returns its port, or 0 for any.
    """

    def __init__(
        self,
        pool: AgentPool,
        verbose: Callable[[str], None],
        *,
        coming: Callable[[], Collection[str]] = tuple,
        reserve: Callable[[str, int], int] = lambda _, port: port,
    ) -> None:
        self._pool = pool
        self._server: Server
        self._verbose = verbose
        self._coming = coming
        self._reserve = reserve
        self._listeners: dict[str, Endpoint] = {}  # of the rendezvous, by address
        self._settled: dict[str, Route] = {}  # of the hosts in use
        self._tunnelled: set[str] = set()  # of these
        self._is_inside = False  # all hosts are this machine, on the loopback interface

    @property
    def facts(self) -> NetworkFacts:
        """What another server of the job needs."""
        ports = {address: endpoint.port for address, endpoint in self._listeners.items()}
        return NetworkFacts(dict(self._settled), ports, self._is_inside, frozenset(self._tunnelled))

    async def open(self, server: "Server", former: NetworkFacts | None = None) -> None:
        """Have the rendezvous listen on loopback, or, after a former server of the job, wherever that has listened."""
        self._server = server
        if former is not None:
            # The former server may have lost some of its hosts since.
            self._settled = {host: route for host, route in former.routes.items() if host in self._pool.hosts}
            self._tunnelled = set(former.tunnelled & self._settled.keys())
            self._is_inside = former.is_inside
            for address, port in former.ports.items():
                await self._listen(address, port)
        await self._listen(LOOPBACK)

    def forget(self, host: str) -> None:
        """The host is no longer in use."""
        self._settled.pop(host, None)
        self._tunnelled.discard(host)

    async def extend(self, spec: JobSpec, newcomers: Sequence[str]) -> dict[str, Answer]:
        """Find the route of each new host, or the error why it cannot be used.

        If the job needs all hosts, the error of one is the answer for all.

        Args:
            spec: the job, with all known hosts.
            newcomers: hosts whose agent has no configuration yet.
        """
        if not self._settled:
            self._is_inside = _can_stay_inside(spec) and all(map(_is_loopback, self._coming()))
        if self._is_inside:
            refusal = _refuse_interfaces(spec, newcomers)
            return {host: refusal or self._admit_inside(spec, host) for host in newcomers}

        answers: dict[str, Answer] = {}
        connectivity = await self._check(spec, list(newcomers), answers)

        while connectivity is not None and (left := [host for host in connectivity.hosts if host in newcomers]):
            choice = self._choose(spec, connectivity)
            if not isinstance(choice, LaunchError):
                return answers | await self._admit_all(spec, left, choice)
            refused: Sequence[str] = left
            if not spec.keeps_first_hosts:
                refused = _find_refused(choice, left)
            for host in refused:
                answers[host] = choice
                connectivity = connectivity.without(host)
        return answers

    async def _check(self, spec: JobSpec, waiting: list[str], answers: dict[str, Answer]) -> "Connectivity | None":
        """Check the hosts in use and these; a host that fails meanwhile gets an answer, and is left out."""
        from hvdrun.network.connectivity import check_connectivity  # noqa: PLC0415 - jobs on this machine alone do without it
        from hvdrun.network.errors import ConnectivityTimeoutError  # noqa: PLC0415 - jobs on this machine alone do without it

        while waiting:
            settled = {host: route.address for host, route in self._settled.items()}
            try:
                # Another agent of a host has no part in this check.
                agents = {host: self._pool.find(host) for host in [*settled, *waiting]}
                return await check_connectivity(
                    [*agents],
                    send=lambda host, order: agents[host].send(order),  # noqa: B023 - it ends before the next one
                    receive=lambda host: agents[host].hear(),  # noqa: B023 - it ends before the next one
                    settled=settled,
                )
            except (ConnectivityTimeoutError, HostLostError, HostLostEarlyError) as error:
                if isinstance(error, ConnectivityTimeoutError):
                    missing = error.hosts
                else:
                    missing = (error.host,)
                have_left = any(host in settled and host not in self._settled for host in missing)
                failed = [host for host in waiting if host in missing]
                # Without a culprit among them all are refused; where a host in use has left, they are checked again.
                if spec.keeps_first_hosts or not (failed or have_left):
                    failed = waiting
                answers.update(dict.fromkeys(failed, error))
                waiting = [host for host in waiting if host not in failed]
        return None

    def _choose(self, spec: JobSpec, connectivity: "Connectivity") -> "Choice | LaunchError":
        from hvdrun.network.addresses import Restriction  # noqa: PLC0415 - jobs on this machine alone do without it
        from hvdrun.network.choice import (  # noqa: PLC0415 - jobs on this machine alone do without it
            check_machines,
            choose,
            choose_alone,
        )

        restriction = None
        if spec.remote.interfaces:
            restriction = Restriction(spec.remote.interfaces)
        try:
            choice = choose(connectivity, restriction)
            if len(connectivity.hosts) == 1 and not spec.keeps_first_hosts:
                choice = replace(choice, hosts={connectivity.hosts[0]: choose_alone(connectivity, restriction)})
            check_machines(choice, have_joined=spec.remote.joining is not None)
        except LaunchError as error:
            return error
        return choice

    async def _admit_all(self, spec: JobSpec, hosts: Sequence[str], choice: "Choice") -> dict[str, Answer]:
        reached = {host: choice.launcher[host] if spec.is_remote(host) else LOOPBACK for host in hosts}
        inside = self._listeners[LOOPBACK]
        ways: dict[str, str] = {}

        async def admit(host: str) -> Answer:
            chosen, address = choice.hosts[host], reached[host]
            try:
                if address is None:
                    end = Endpoint(LOOPBACK, await self._pool.tunnel(host, inside.port))
                else:
                    end = await self._listen(address)
            except LaunchError as error:
                return error
            if host not in self._pool.hosts:  # it was lost meanwhile, and forgotten
                return HostLostEarlyError(host, "the job has left it")
            if address is None:
                self._tunnelled.add(host)
            way = f"at {end}" if address is not None else spec.remote.inner_way
            ways[host] = f"{host}: {chosen.reason}; it reaches the rendezvous {way}"
            self._settled[host] = route = Route(chosen.address, chosen.interface, end)
            return route

        for address in dict.fromkeys(reached.values()):
            if address is not None:
                await self._listen(address)
        answers = dict(zip(hosts, await asyncio.gather(*map(admit, hosts)), strict=True))
        for host in hosts:
            if host in ways:
                self._verbose(ways[host])
        return answers

    def _admit_inside(self, spec: JobSpec, host: str) -> Answer:
        if not spec.remote.is_inside:
            return InsideOnlyError(host)
        if spec.remote.joining is None and (same := self._find_other_name(host)) is not None:
            from hvdrun.network.errors import SameMachineError  # noqa: PLC0415 - jobs on this machine alone do without it

            return SameMachineError((same, host), LOOPBACK)
        self._settled[host] = route = Route(LOOPBACK, "", self._listeners[LOOPBACK])
        return route

    def _find_other_name(self, host: str) -> str | None:
        """A host in use that is the same machine. Several loopback names may stand for several hosts, as in a trial."""
        return next((other for other in self._settled if not (_is_loopback(other) and _is_loopback(host))), None)

    async def _listen(self, address: str, port: int = 0) -> Endpoint:
        if address not in self._listeners:
            port = await self._server.open(address, self._reserve(address, port))
            self._listeners[address] = endpoint = Endpoint(address, port)
            self._verbose(f"the rendezvous listens on {endpoint}")
        return self._listeners[address]


def _can_stay_inside(spec: JobSpec) -> bool:
    """No host of this job is another machine, or can become one."""
    if spec.remote.joining is not None:
        return spec.remote.joining.is_inside
    if spec.remote.hosts:
        return False
    hosts = spec.workers.hosts
    return not spec.discovers or (not spec.remote.interfaces and all(_is_loopback(host.name) for host in hosts))


def _refuse_interfaces(spec: JobSpec, hosts: Sequence[str]) -> LaunchError | None:
    """The error where this machine, on which all these hosts are, has none of the interfaces that the user names."""
    if not spec.remote.interfaces:
        return None
    from hvdrun.network.addresses import Restriction  # noqa: PLC0415 - jobs on this machine seldom name interfaces
    from hvdrun.network.choice import check_inside  # noqa: PLC0415 - jobs on this machine seldom name interfaces

    try:
        check_inside(hosts, Restriction(spec.remote.interfaces))
    except LaunchError as error:
        return error
    return None


def _is_loopback(host: str) -> bool:
    """The name means, on each machine, that machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_refused(error: LaunchError, newcomers: Sequence[str]) -> Sequence[str]:
    """The new hosts to refuse, so that the others can connect: as few as possible, or all if none is to blame."""
    from hvdrun.network.errors import (  # noqa: PLC0415 - jobs on this machine alone do without it
        NoAllowedAddressError,
        NoCommonAddressError,
        SameMachineError,
    )

    found: list[str] = []
    match error:
        case NoCommonAddressError():
            named = Counter(host for pair in error.unreached for host in pair if host in newcomers)
            named.update(host for host in error.divided if host in newcomers)
            found = []
            if named:
                found = [max(reversed(newcomers), key=lambda host: named[host])]
        case NoAllowedAddressError():
            found = [host for host in newcomers if host in error.hosts]
        case SameMachineError():
            found = [host for host in newcomers if host in error.names[1:]]
    return found or newcomers
