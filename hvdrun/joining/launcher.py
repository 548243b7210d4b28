"""Listens for agents, gathers the hosts of a static job, and runs the job with the agents that join."""

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from secrets import token_hex
from typing import Any

from hvdrun.console import Console
from hvdrun.errors import LaunchError
from hvdrun.joining.listener import JoinListener
from hvdrun.joining.roster import Roster
from hvdrun.joining.token import open_keys
from hvdrun.network.addresses import list_addresses
from hvdrun.network.choice import find_own_outward
from hvdrun.processes.background import BackgroundTasks
from hvdrun.processes.signals import answer_signals
from hvdrun.spec.hosts import count_slots
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.mapping import map_workers
from hvdrun.spec.redaction import redact_command
from hvdrun.spec.remote import FREE_PORT, Joining
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.core.outcome import TEMPORARY_FAILURE, Outcome, end_as_noticed, stop

RunJob = Callable[[JobSpec, Roster], Awaitable[Outcome]]
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what a user may give to --bind
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


async def run_with_agents(spec: JobSpec, joining: Joining, console: Console, run: RunJob) -> Outcome:
    """Run a job with the agents that join by themselves.

    Raises:
        LaunchError: hvdrun cannot launch the job.
        Exception: an unexpected error in one of its tasks.
    """
    place = choose_place(joining)
    tasks = BackgroundTasks()
    roster = Roster(spec.limits.lease_seconds, tasks)
    with ExitStack() as stack:
        keys = stack.enter_context(open_keys(joining.token_file, spec.workers.directory, token_hex(_NAME_BYTES)))
        listener = JoinListener(keys.token, keys.authority.issue_server(), roster.receive, tasks)
        stack.callback(listener.close)
        async with tasks:
            try:
                port = listener.open(place.address, place.port)
            except OSError as error:
                raise CannotListenError(place, error.strerror or str(error)) from error
            at = Endpoint(find_reachable(place.address), port)
            console.notice(f"waiting for agents; on each host run: {write_line(at, str(keys.path))}")
            exit_code = TEMPORARY_FAILURE
            try:
                found = await _find_hosts(spec, joining, console, roster, tasks)
                outcome = await run(found, roster) if isinstance(found, JobSpec) else found
                exit_code = outcome.exit_code
            finally:
                roster.stop_admitting(_OVER, exit_code)
                await roster.release()
    return outcome


async def _find_hosts(
    spec: JobSpec, joining: Joining, console: Console, roster: Roster, tasks: BackgroundTasks
) -> JobSpec | Outcome:
    """The job with the hosts that it begins with, or its outcome where it was stopped before."""
    reporting = tasks.create_task(_tell_agents(spec, roster, console.notice), name="report agents")
    if spec.is_elastic:
        return spec
    found = await _unless_stopped(gather(spec, joining, roster), tasks)
    reporting.cancel()
    if isinstance(found, JobSpec):
        console.notice(describe_agents(found.workers.hosts, spec.workers.size))
    elif not found.is_interrupt:
        console.notice(f"{found.reason}.")
    return found


async def gather(spec: JobSpec, joining: Joining, roster: Roster) -> JobSpec:
    """The job with the hosts that have joined, once they have slots for its workers; waits without a limit.

    Ranks follow the hosts' names, not the order of joining: the same hosts get the same ranks each time.
    """
    hosts = roster.hosts
    while (found := choose_hosts(hosts, spec.workers.size)) is None:
        hosts = await roster.other_than(hosts)
    names = frozenset(host.name for host in found)
    roster.stop_admitting(FULL)
    await roster.release(names)
    used = map_workers(found, spec.workers.size, joining.map_by, oversubscribe=False)
    workers, remote = replace(spec.workers, hosts=used), replace(spec.remote, hosts=names)
    return replace(spec, workers=workers, remote=remote)


def choose_hosts(hosts: tuple[Host, ...], size: int) -> tuple[Host, ...] | None:
    """The first of these hosts that together have `size` slots, sorted by name; None while they have fewer."""
    chosen: list[Host] = []
    for host in hosts:
        chosen.append(host)
        if sum(each.slots for each in chosen) >= size:
            return tuple(sorted(chosen, key=_count_digits))
    return None


def choose_place(joining: Joining) -> Endpoint:
    """Where to listen: the value of --bind, else this machine's outward address; all addresses only on request."""
    if joining.bind is not None:
        return joining.bind
    return Endpoint(find_reachable(), FREE_PORT)


def find_reachable(address: str = "0.0.0.0") -> str:  # noqa: S104 - stands for no particular one
    """The address at which other hosts reach this one; loopback on a machine without a network.

    It is the source address of the default route; without such a route, the first address.
    """
    if address not in ANY_ADDRESS:
        return address
    outward = sorted(find_own_outward(), key=lambda found: (":" in found, found))
    return next(iter(outward or [entry.address for entry in list_addresses()]), LOOPBACK)


def write_line(place: Endpoint | str, path: str) -> str:
    """The command that starts an agent; it names the token's file, and does not show the secret."""
    return f"hvdrun agent --join {place} --token-file {shlex.quote(path)}"


async def _tell_agents(spec: JobSpec, roster: Roster, notice: Callable[[str], None]) -> None:
    """Print the agents whenever they have changed, but for what is printed elsewhere.

    Printed elsewhere are a static job's hosts once they are complete, and the hosts that an elastic job has lost.
    """
    known: tuple[Host, ...] = ()
    while True:
        former, known = known, await roster.other_than(known)
        is_news = not frozenset(known) <= frozenset(former)
        if is_news if spec.is_elastic else choose_hosts(known, spec.workers.size) is None:
            notice(describe_agents(known, spec.workers.size))
        await asyncio.sleep(_PAUSE_SECONDS)


def describe_agents(hosts: tuple[Host, ...], size: int) -> str:
    """A line about the agents that have joined, and the slots that are missing."""
    named = [f"{host.name} ({count_slots(host.slots)})" for host in hosts[:_NAMED]]
    more = [f"and {len(hosts) - _NAMED} more"] if len(hosts) > _NAMED else []
    slots = sum(host.slots for host in hosts)
    offered = f"{slots} of {count_slots(size)}" if slots < size else count_slots(slots)
    return f"agents: {', '.join([*named, *more]) or 'none'}; {offered}."


async def _unless_stopped(gathering: Coroutine[object, object, JobSpec], tasks: BackgroundTasks) -> JobSpec | Outcome:
    """Wait for the hosts, or for a signal, which gives the outcome."""
    stopped: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def end(outcome: Outcome) -> None:
        if not stopped.done():
            stopped.set_result(outcome)

    with answer_signals(
        lambda code, reason: end(stop(code, reason)),
        lambda: os.kill(os.getpid(), signal.SIGSTOP),
        lambda: end(end_as_noticed()),
    ):
        gathered = tasks.create_task(gathering, name="gather the hosts of a static job")
        either: set[asyncio.Future[Any]] = {gathered, stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    return stopped.result() if stopped.done() else gathered.result()


def _count_digits(host: Host) -> list[tuple[bool, int, str]]:
    """A sort key that puts node2 before node10."""
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in _DIGITS.split(host.name)]


def describe_joining(spec: JobSpec, joining: Joining) -> str:
    """The page of --dry-run: where hvdrun would listen, and how agents would start; ends without a newline."""
    place = choose_place(joining)
    address = find_reachable(place.address)
    at = str(Endpoint(address, place.port)) if place.port else f"{address}:PORT"
    token = str(joining.token_file or "FILE")
    return "\n".join(
        [
            f"--dry-run: nothing is started. hvdrun would wait for agents with {count_slots(spec.workers.size)}:",
            f"  listens    {at if place.port else f'{address}, on a free port'}",
            f"  token      {joining.token_file or f'created for this job, in {spec.workers.directory}'}",
            f"  each host  {write_line(at, token)}",
            f"  command    {shlex.join(redact_command(spec.workers.command))}",
            f"  directory  {spec.workers.directory}",
        ]
    )
