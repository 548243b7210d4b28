"""How the hosts of a job reach each other, and the rendezvous: on this machine alone, or as a survey has proven."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hvdrun.errors import LaunchError, raise_failures
from hvdrun.hosts.fleet import Fleet
from hvdrun.spec.jobspec import JobSpec
from hvdrun.version import __version__
from rendezvous.core.model import LOOPBACK, Endpoint
from rendezvous.orders import Hello

HELLO_SECONDS = 30.0  # an agent speaks as soon as Python has started, on whatever busy host


@dataclass(frozen=True, slots=True)
class Route:
    """The ways of one host.

    address: where the workers of the other hosts reach this one, and interface: what has it there; "" for loopback.
    server: where this host reaches the rendezvous.
    """

    address: str
    interface: str
    server: Endpoint


class Doors(Protocol):
    """Opens ways in (`rendezvous.server.Server`)."""

    async def open(self, address: str) -> int:
        """Listen on a free port of this address; the port."""


async def find_routes(spec: JobSpec, fleet: Fleet, server: Doors, tell: Callable[[str], None]) -> dict[str, Route]:
    """The ways of every host of the fleet, by host, once each agent has said hello.

    A job on this machine alone needs none but loopback. Otherwise all hosts and the launcher are surveyed, and the
    rendezvous is opened at each address of this machine that some host has reached; a host that reaches none of them
    comes through a tunnel of its ssh connection.

    Args:
        spec: the job.
        fleet: agents that have been started, and have not been told of the job.
        server: the rendezvous.
        tell: takes sentences for whoever asked hvdrun to be verbose.

    Raises:
        LaunchError: there are no such ways, or an agent did not answer.
    """
    inside = Endpoint(LOOPBACK, await server.open(LOOPBACK))
    await check_versions(spec, fleet)
    if spec.remote.is_inside:
        return dict.fromkeys(fleet.hosts, Route(LOOPBACK, "", inside))
    from hvdrun.network.choice import check_machines, choose  # noqa: PLC0415 - a job on this machine alone needs none of it
    from hvdrun.network.restriction import Restriction  # noqa: PLC0415 - the same
    from hvdrun.network.survey import survey  # noqa: PLC0415 - the same

    findings = await survey(fleet.hosts, fleet.send, fleet.hear)
    choice = choose(findings, Restriction(spec.remote.interfaces) if spec.remote.interfaces else None)
    check_machines(choice)
    reached = {host: choice.launcher[host] for host in fleet.hosts if spec.is_remote(host)}
    ends = await _open_ways(fleet, server, inside, reached)
    for host, end in ends.items():
        way = spec.remote.inner_way if spec.is_remote(host) and end.address == LOOPBACK else f"at {end}"
        tell(f"{host}: {choice.hosts[host].reason}; it reaches the rendezvous {way}")
    return {host: Route(choice.hosts[host].address, choice.hosts[host].interface, end) for host, end in ends.items()}


async def _open_ways(
    fleet: Fleet, server: Doors, inside: Endpoint, reached: Mapping[str, str | None]
) -> dict[str, Endpoint]:
    """Where each host reaches the rendezvous; `reached` has the address of this machine that a remote one reaches."""
    addresses = [address for address in dict.fromkeys(reached.values()) if address]
    doors = {address: Endpoint(address, await server.open(address)) for address in addresses}

    async def lead(host: str) -> Endpoint | LaunchError:
        address = reached.get(host)
        if address is not None:
            return doors[address]
        try:
            return Endpoint(LOOPBACK, await fleet.tunnel(host, inside.port))
        except LaunchError as error:
            return error

    answers = dict(zip(fleet.hosts, await asyncio.gather(*map(lead, fleet.hosts)), strict=True))
    raise_failures([answer for answer in answers.values() if isinstance(answer, LaunchError)], len(answers))
    return {host: answer for host, answer in answers.items() if isinstance(answer, Endpoint)}


async def check_versions(spec: JobSpec, fleet: Fleet) -> None:
    """Refuse agents of another version, which would not understand each other.

    Raises:
        LaunchError: there are some, or they said nothing; all of them are named.
    """

    async def check(host: str) -> LaunchError | None:
        try:
            await check_version(spec, fleet, host)
        except LaunchError as error:
            return error
        return None

    answers = await asyncio.gather(*map(check, fleet.hosts))
    raise_failures([failure for failure in answers if failure is not None], len(fleet.hosts))


async def check_version(spec: JobSpec, fleet: Fleet, host: str) -> None:
    """Wait for the hello of this host's agent, and refuse the agent if it is of another version.

    An agent on this machine has until --start-timeout, which the rendezvous counts.

    Raises:
        LaunchError: it is of another version, has ended, or said nothing.
    """
    try:
        async with asyncio.timeout(HELLO_SECONDS if spec.is_remote(host) else None):
            while not isinstance(hello := await fleet.hear(host), Hello):
                pass
    except TimeoutError:
        raise LaunchError(f"the agent on the host {host!r} said nothing within {HELLO_SECONDS:g} s.") from None
    if hello.version != __version__:
        from hvdrun.transport.failures import VersionMismatchError  # noqa: PLC0415 - as above

        interpreter = spec.remote.interpreter if spec.is_remote(host) else sys.executable
        raise VersionMismatchError(host, interpreter, hello.version, __version__)
