"""Listens for agents, and runs a job with those that join."""

import asyncio
import json
import re
import shlex
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import astuple, replace
from functools import partial
from ipaddress import ip_address
from secrets import token_hex
from typing import Protocol

from hvdrun.console import Console
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, LaunchError
from hvdrun.joining.listener import JoinListener
from hvdrun.joining.roster import Roster
from hvdrun.joining.token import Keys, open_keys, reopen_keys
from hvdrun.network.addresses import list_addresses
from hvdrun.network.choice import find_own_outward
from hvdrun.processes.background import BackgroundTasks, in_thread
from hvdrun.processes.signals import keep_signals
from hvdrun.spec.hosts import count_slots
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.mapping import MapBy, map_workers, take_slots
from hvdrun.spec.redaction import redact_command
from hvdrun.spec.remote import FREE_PORT, Joining
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.core.outcome import Outcome
from rendezvous.errors import ListenError

RunJob = Callable[[Roster], Awaitable[Outcome]]
ANYWHERE = "0.0.0.0"  # noqa: S104 - what a user may give to --bind
ANY_ADDRESS = frozenset({ANYWHERE, "::"})
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
FULL = "the job has all its hosts: this agent is not needed."
_OVER = "the job has ended: this agent is not needed."
_PAUSE_SECONDS = 0.5  # between two lines about agents: agents that join together get one line
_NAMED = 8  # hosts in a line
_NAME_BYTES = 4
_DIGITS = re.compile(r"(\d+)")


class CannotListenError(LaunchError):
    """The launcher cannot listen for agents.

    Cause: Another program has the port, or the address is not one of this machine.
    Remedy: Name another place with `--bind`.
    """

    def __init__(self, place: Endpoint, reason: str) -> None:
        super().__init__(f"hvdrun cannot listen for agents at {place}: {reason}; name another place with --bind.")
        self.place = place


class Keeper(Protocol):
    """What a job keeps for its next launcher; see `hvdrun.jobs.continuation.Continuation`."""

    @property
    def joining(self) -> bytes | None:
        """Where and by which keys agents join, as a former launcher has kept it."""

    def keep_joining(self, facts: bytes) -> None:
        """Keep it."""

    def reserve(self, address: str, number: int = 0) -> int:
        """Keep a port at this address, or a free one.

        Raises:
            ListenError: that is not possible.
        """


async def run_with_agents(
    spec: JobSpec, joining: Joining, console: Console, run: RunJob, keeper: Keeper | None = None
) -> Outcome:
    """Run a job with the agents that join by themselves.

    keeper: of a job that outlives its launcher.

    Raises:
        LaunchError: hvdrun cannot launch the job.
        Exception: an unexpected error in one of its tasks.
    """
    tasks = BackgroundTasks()
    roster = Roster(spec.limits.lease_seconds, tasks, is_lasting=spec.display.detach)
    former = None if keeper is None else keeper.joining

    with ExitStack() as stack:
        stack.enter_context(keep_signals())
        if former is None:
            endpoint = await in_thread(partial(choose_endpoint, joining))  # in a thread: it looks a name up
            keys = stack.enter_context(open_keys(joining.token_file, spec.workers.directory, token_hex(_NAME_BYTES)))
        else:
            endpoint, kept = _decode(former)
            keys = stack.enter_context(reopen_keys(kept, joining.token_file))
        shown = endpoint.address
        if keeper is not None:
            endpoint = await in_thread(partial(_reserve, endpoint, keeper))
            keeper.keep_joining(_encode(endpoint, keys))
        listener = JoinListener(keys.token, keys.authority.issue_server(), roster.receive, tasks)
        stack.callback(listener.close)
        async with tasks:
            try:
                port = await listener.open(endpoint.address, endpoint.port)
            except OSError as error:
                raise CannotListenError(endpoint, error.strerror or str(error)) from error
            if former is None:
                at = Endpoint(find_reachable(shown), port)
                console.notice(f"waiting for agents; on each host run: {write_line(at, str(keys.path))}")

            exit_code = CANNOT_LAUNCH
            try:
                outcome = await run(roster)
                exit_code = outcome.exit_code
            except HvdrunError as error:
                exit_code = error.exit_code
                raise
            finally:
                roster.stop_admitting(_OVER, exit_code)
                await roster.release()
    return outcome


def _reserve(endpoint: Endpoint, keeper: Keeper) -> Endpoint:
    """The endpoint with its address and port as numbers, which the job keeps.

    Raises:
        CannotListenError: that is not possible.
    """
    try:
        look_up = socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        address = str(look_up[0][4][0])
        return Endpoint(address, keeper.reserve(address, endpoint.port))
    except ListenError as error:
        raise CannotListenError(endpoint, str(error).rpartition(": ")[2]) from error
    except OSError as error:
        raise CannotListenError(endpoint, error.strerror or str(error)) from error


def _encode(endpoint: Endpoint, keys: Keys) -> bytes:
    return json.dumps({"place": astuple(endpoint), "keys": keys.encode().decode()}).encode()


def _decode(text: bytes) -> tuple[Endpoint, Keys]:
    found = json.loads(text)
    return Endpoint(*found["place"]), Keys.decode(found["keys"].encode())


class JoinedHosts:
    """The hosts whose agents have joined; see `hvdrun.hosts.sources.Source`.

    Args:
        spec: the job as a value.
        roster: the agents that have joined.
        notice: prints a sentence.
    """

    coming = ()

    def __init__(self, spec: JobSpec, roster: Roster, notice: Callable[[str], None]) -> None:
        self._spec = spec
        self._size = spec.workers.size
        if spec.remote.joining is None:
            self._map_by = MapBy.SLOT
        else:
            self._map_by = spec.remote.joining.map_by
        self._roster = roster
        self._notice = notice

    async def run(self, use: Callable[[JobSpec], None]) -> None:
        """See `Source`.

        Ranks follow the hosts' names, not the order of joining: the same hosts get the same ranks each time.
        """
        async with BackgroundTasks() as tasks:
            tasks.create_task(self._report(), name="report agents")
            hosts = self._roster.hosts
            while (found := self._choose(hosts)) is None:
                use(self._name(hosts))
                hosts = await self._roster.await_change(hosts)
        self._roster.stop_admitting(FULL)
        used = map_workers(found, self._size, self._map_by, oversubscribe=False)
        if found != self._roster.restored:
            self._notice(describe_agents(used, self._size))
        use(self._name(take_slots(used, self._size)))
        await self._roster.release(frozenset(host.name for host in found))

    async def _report(self) -> None:
        """Print the agents whenever they have changed, but for what is printed elsewhere.

        Printed elsewhere are the hosts that the job keeps, and those that an elastic job has lost.
        """
        known = self._roster.restored
        while True:
            former, known = known, await self._roster.await_change(known)
            has_new = not frozenset(known) <= frozenset(former)
            if self._choose(known) is None and (has_new or self._spec.keeps_first_hosts):
                self._notice(describe_agents(known, self._size))
            await asyncio.sleep(_PAUSE_SECONDS)

    def _choose(self, hosts: tuple[Host, ...]) -> tuple[Host, ...] | None:
        """The hosts that the job keeps; None while it takes others."""
        if self._spec.keeps_first_hosts:
            return choose_hosts(hosts, self._size)
        return None

    def _name(self, hosts: tuple[Host, ...]) -> JobSpec:
        """The job with these hosts; none of them is this machine, nor are those that it had before."""
        spec = self._spec
        remote = replace(spec.remote, hosts=spec.remote.hosts.union(host.name for host in hosts))
        self._spec = replace(spec, workers=replace(spec.workers, hosts=hosts), remote=remote)
        return self._spec


def choose_hosts(hosts: tuple[Host, ...], size: int) -> tuple[Host, ...] | None:
    """The first of these hosts that together have `size` slots, sorted by name; None while they have fewer."""
    chosen: list[Host] = []
    for host in hosts:
        chosen.append(host)
        if sum(each.slots for each in chosen) >= size:
            return tuple(sorted(chosen, key=_count_digits))
    return None


def choose_endpoint(joining: Joining) -> Endpoint:
    """Where to listen: the value of --bind, else this machine's outward address; all addresses only on request."""
    if joining.bind is None:
        return Endpoint(find_reachable(), FREE_PORT)
    if _hides(joining.bind.address):
        return Endpoint(ANYWHERE, joining.bind.port)
    return joining.bind


def _hides(name: str) -> bool:
    """This machine calls itself by this name, and other hosts cannot reach the address that it has for it.

    Debian's /etc/hosts has 127.0.1.1 for the host's own name.
    """
    if name.partition(".")[0] in _LOCAL_NAMES:
        return False
    try:
        ip_address(name)
    except ValueError:
        with suppress(OSError):  # listening reports it
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
    return False


def find_reachable(address: str = ANYWHERE) -> str:
    """The address at which other hosts reach this one; loopback on a machine without a network.

    It is the source address of the default route; without such a route, the first address.
    """
    if address not in ANY_ADDRESS:
        return address
    outward = sorted(find_own_outward(), key=lambda found: (":" in found, found))
    return next(iter(outward or [entry.address for entry in list_addresses()]), LOOPBACK)


def write_line(endpoint: Endpoint | str, path: str) -> str:
    """The command that starts an agent; it names the token's file, and does not show the secret."""
    return f"hvdrun agent --join {endpoint} --token-file {shlex.quote(path)}"


def describe_agents(hosts: tuple[Host, ...], size: int) -> str:
    """A line about the agents that have joined, and the slots that are missing."""
    named = [f"{host.name} ({count_slots(host.slots)})" for host in hosts[:_NAMED]]
    more = []
    if len(hosts) > _NAMED:
        more = [f"and {len(hosts) - _NAMED} more"]
    slots = sum(host.slots for host in hosts)
    offered = f"{slots} of {count_slots(size)}" if slots < size else count_slots(slots)
    return f"agents: {', '.join([*named, *more]) or 'none'}; {offered}."


def _count_digits(host: Host) -> list[tuple[bool, int, str]]:
    """A sort key that puts node2 before node10."""
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in _DIGITS.split(host.name)]


def describe_joining(spec: JobSpec, joining: Joining) -> str:
    """The page of --dry-run: where hvdrun would listen, and how agents would start; ends without a newline."""
    endpoint = choose_endpoint(joining)
    address = find_reachable(endpoint.address)
    at = str(Endpoint(address, endpoint.port)) if endpoint.port else f"{address}:PORT"
    token = str(joining.token_file or "FILE")
    return "\n".join(
        [
            f"--dry-run: nothing is started. hvdrun would wait for agents with {count_slots(spec.workers.size)}:",
            f"  listens    {at if endpoint.port else f'{address}, on a free port'}",
            f"  token      {joining.token_file or f'created for this job, in {spec.workers.directory}'}",
            f"  each host  {write_line(at, token)}",
            f"  command    {shlex.join(redact_command(spec.workers.command))}",
            f"  directory  {spec.workers.directory}",
        ]
    )
