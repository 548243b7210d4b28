"""How the hosts of a job reach each other, and the rendezvous, whenever they come.

The first hosts are checked together. A host that comes later must reach, and be reached by, those that are in use, at
the addresses that these have already. A job whose hosts are all this machine stays on the loopback interface, and needs
no connectivity check.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdrun.errors import HostLostError, LaunchError
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

    address: where the workers of the other hosts reach this one, and interface: what has it there; "" for loopback.
    server: where this host reaches the rendezvous.
    """

    address: str
    interface: str
    server: Endpoint


Answer = Route | LaunchError


class InsideOnlyError(LaunchError):
    """A host would have to reach workers that only this machine reaches.

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
    """The routes of the hosts that are in use; belongs to one event loop, and is extended by one caller at a time.

    verbose: takes what -v prints.
    is_whole: no other hosts come than the first ones, and each of these is needed.
    coming: the hosts that are named, and of which the job does not know yet whether they are this machine.
    loopback: loopback addresses take part in connectivity checks; for tests.
    """

    def __init__(
        self,
        pool: AgentPool,
        verbose: Callable[[str], None],
        *,
        is_whole: bool = False,
        coming: Callable[[], Collection[str]] = tuple,
        loopback: bool = False,
    ) -> None:
        self._pool = pool
        self._server: Server
        self._verbose = verbose
        self._is_whole = is_whole
        self._coming = coming
        self._loopback = loopback
        self._doors: dict[str, Endpoint] = {}  # by the launcher's address
        self._settled: dict[str, str] = {}  # the hosts in use, and where the others reach them
        self._is_inside = False  # they are all this machine, on the loopback interface

    async def open(self, server: "Server") -> None:
        """Open the rendezvous on this machine itself."""
        self._server = server
        await self._open_door(LOOPBACK)

    def forget(self, host: str) -> None:
        """The host is not in use any more."""
        self._settled.pop(host, None)

    async def extend(self, spec: JobSpec, newcomers: Sequence[str]) -> dict[str, Answer]:
        """The routes of hosts that are to be used from now on, or why one cannot be, by host.

        Where all are needed, one that cannot be reached is the answer for all.

        Args:
            spec: the job, with all hosts that are known.
            newcomers: hosts with an agent that has not been told of the job.
        """
        if not self._settled:
            self._is_inside = _can_stay_inside(spec) and all(map(_means_itself, self._coming()))
        if self._is_inside:
            return {host: self._admit_inside(spec, host) for host in newcomers}
        answers: dict[str, Answer] = {}
        connectivity = await self._check(list(newcomers), answers)
        while connectivity is not None and (left := [host for host in connectivity.hosts if host in newcomers]):
            choice = self._choose(spec, connectivity)
            if not isinstance(choice, LaunchError):
                return answers | await self._admit_all(spec, left, choice)
            for host in left if self._is_whole else _find_hindrances(choice, left):
                answers[host] = choice
                connectivity = connectivity.without(host)
        return answers

    async def _check(self, waiting: list[str], answers: dict[str, Answer]) -> "Connectivity | None":
        """What a check of the hosts in use and of these finds; who fails meanwhile gets an answer and is left out."""
        from hvdrun.network.connectivity import check_connectivity  # noqa: PLC0415 - the same
        from hvdrun.network.errors import ConnectivityTimeoutError  # noqa: PLC0415 - jobs on this machine alone do without it

        while waiting:
            settled = dict(self._settled)
            try:
                return await check_connectivity(
                    [*settled, *waiting], self._pool.send, self._pool.hear, settled=settled, loopback=self._loopback
                )
            except (ConnectivityTimeoutError, HostLostError) as error:
                missing = error.hosts if isinstance(error, ConnectivityTimeoutError) else (error.host,)
                have_left = any(host in settled and host not in self._settled for host in missing)
                failed = [host for host in waiting if host in missing] or ([] if have_left else waiting)
                failed = waiting if self._is_whole else failed
                answers.update(dict.fromkeys(failed, error))
                waiting = [host for host in waiting if host not in failed]
        return None

    def _choose(self, spec: JobSpec, connectivity: "Connectivity") -> "Choice | LaunchError":
        from hvdrun.network.addresses import Restriction  # noqa: PLC0415 - the same
        from hvdrun.network.choice import (  # noqa: PLC0415 - the same
            check_machines,
            choose,
            choose_alone,
        )

        restriction = Restriction(spec.remote.interfaces) if spec.remote.interfaces else None
        try:
            choice = choose(connectivity, restriction)
            if len(connectivity.hosts) == 1 and not self._is_whole:
                choice = replace(choice, hosts={connectivity.hosts[0]: choose_alone(connectivity, restriction)})
            check_machines(choice)
        except LaunchError as error:
            return error
        return choice

    async def _admit_all(self, spec: JobSpec, hosts: Sequence[str], choice: "Choice") -> dict[str, Answer]:
        reached = {host: choice.launcher[host] if spec.is_remote(host) else LOOPBACK for host in hosts}
        inside = self._doors[LOOPBACK]
        ways: dict[str, str] = {}

        async def admit(host: str) -> Answer:
            chosen, address = choice.hosts[host], reached[host]
            try:
                end = (
                    Endpoint(LOOPBACK, await self._pool.tunnel(host, inside.port))
                    if address is None
                    else await self._open_door(address)
                )
            except LaunchError as error:
                return error
            way = f"at {end}" if address is not None else spec.remote.inner_way
            ways[host] = f"{host}: {chosen.reason}; it reaches the rendezvous {way}"
            self._settled[host] = chosen.address
            return Route(chosen.address, chosen.interface, end)

        for address in dict.fromkeys(reached.values()):
            if address is not None:
                await self._open_door(address)
        answers = dict(zip(hosts, await asyncio.gather(*map(admit, hosts)), strict=True))
        for host in hosts:
            if host in ways:
                self._verbose(ways[host])
        return answers

    def _admit_inside(self, spec: JobSpec, host: str) -> Answer:
        if not spec.remote.is_inside:
            return InsideOnlyError(host)
        if spec.remote.joining is None and (same := self._find_other_name(host)) is not None:
            from hvdrun.network.errors import SameMachineError  # noqa: PLC0415 - the same

            return SameMachineError((same, host), LOOPBACK)
        self._settled[host] = LOOPBACK
        return Route(LOOPBACK, "", self._doors[LOOPBACK])

    def _find_other_name(self, host: str) -> str | None:
        """A host in use that is the same machine. Several loopback names may stand for several hosts, as in a trial."""
        return next((other for other in self._settled if not (_means_itself(other) and _means_itself(host))), None)

    async def _open_door(self, address: str) -> Endpoint:
        if address not in self._doors:
            self._doors[address] = door = Endpoint(address, await self._server.open(address))
            self._verbose(f"the rendezvous listens on {door}")
        return self._doors[address]


def _can_stay_inside(spec: JobSpec) -> bool:
    """No host of this job is, or is likely to be, another machine."""
    if spec.remote.joining is not None:
        return spec.remote.joining.is_inside
    if spec.remote.hosts:
        return False
    hosts = spec.workers.hosts
    return not spec.discovers or (not spec.remote.interfaces and all(_means_itself(host.name) for host in hosts))


def _means_itself(host: str) -> bool:
    """The name leads each machine to itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_hindrances(error: LaunchError, newcomers: Sequence[str]) -> Sequence[str]:
    """Without which of the newcomers the others may have a network: few of them, all where nobody is to blame."""
    from hvdrun.network.errors import (  # noqa: PLC0415 - as above
        NoAllowedAddressError,
        NoCommonAddressError,
        SameMachineError,
    )

    found: list[str] = []
    match error:
        case NoCommonAddressError():
            named = Counter(host for pair in error.unreached for host in pair if host in newcomers)
            named.update(host for host in error.divided if host in newcomers)
            found = [max(reversed(newcomers), key=lambda host: named[host])] if named else []
        case NoAllowedAddressError():
            found = [host for host in newcomers if host in error.hosts]
        case SameMachineError():
            found = [host for host in newcomers if host in error.names[1:]]
    return found or newcomers
