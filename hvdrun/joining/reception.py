"""Opens the launcher's door, gathers the hosts of a static job, and runs the job with the agents that come."""

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from secrets import token_hex
from typing import Any, TypeVar

from hvdrun.console import Console
from hvdrun.errors import LaunchError
from hvdrun.joining.door import Door
from hvdrun.joining.keys import open_keys
from hvdrun.joining.roster import Roster
from hvdrun.network.alone import find_own_outward
from hvdrun.network.interfaces import list_addresses
from hvdrun.processes.signals import answer_signals
from hvdrun.processes.supervision import supervise
from hvdrun.spec.hosts import count_slots
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.joining import FREE_PORT, Joining
from hvdrun.spec.mapping import map_workers
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.core.outcome import TEMPORARY_FAILURE, Outcome, end_as_noticed, stop

T = TypeVar("T")
U = TypeVar("U")
RunJob = Callable[[JobSpec, Roster], Awaitable[Outcome]]
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what a user may give to --bind
FULL = "the job has all its hosts: this agent is not needed."
_OVER = "the job has ended: this agent is not needed."
_PAUSE_SECONDS = 0.5  # between two lines about who has come: agents that come together stand in one
_NAMED = 8  # hosts in a line
_NAME_BYTES = 4
_DIGITS = re.compile(r"(\d+)")


class CannotListenError(LaunchError):
    """The launcher cannot listen for agents."""

    def __init__(self, place: Endpoint, reason: str) -> None:
        super().__init__(f"hvdrun cannot listen for agents at {place}: {reason}; name another place with --bind.")
        self.place = place


async def receive(spec: JobSpec, joining: Joining, console: Console, run: RunJob) -> Outcome:
    """Run a job with the agents that come by themselves; how it has ended.

    Raises:
        LaunchError: hvdrun could not do its part.
        Exception: a task that nobody awaits has failed, which is a fault of hvdrun's own.
    """
    fault: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def fail(error: BaseException) -> None:
        if not fault.done():
            fault.set_exception(error)
            fault.exception()  # taken notice of, should the job have ended

    return await _either(_receive(spec, joining, console, run, fail), fault)


async def _receive(
    spec: JobSpec, joining: Joining, console: Console, run: RunJob, fail: Callable[[BaseException], None]
) -> Outcome:
    roster = Roster(spec.limits.lease_seconds, fail)
    ended_with = TEMPORARY_FAILURE
    place = choose_place(joining)
    async with AsyncExitStack() as stack:
        keys = stack.enter_context(open_keys(joining.token_file, spec.workers.directory, token_hex(_NAME_BYTES)))
        door = Door(keys.token, keys.authority.issue_server(), roster.receive, fail)
        stack.push_async_callback(door.close)
        try:
            port = door.open(place.address, place.port)
        except OSError as error:
            raise CannotListenError(place, error.strerror or str(error)) from error
        stack.push_async_callback(roster.close)
        stack.callback(lambda: roster.shut(_OVER, ended_with))
        at = Endpoint(find_reachable(place.address), port)
        console.notice(f"waiting for agents; on each host run: {write_line(at, str(keys.path))}")
        telling = supervise(asyncio.create_task(_tell_agents(spec, roster, console.notice)), fail)
        stack.push_async_callback(_end, telling)
        found = spec if spec.is_elastic else await _unless_stopped(gather(spec, joining, roster))
        if isinstance(found, Outcome):
            if not found.is_interrupt:
                console.notice(f"{found.reason}.")
            return found
        if not spec.is_elastic:
            await _end(telling)
            console.notice(describe_agents(found.workers.hosts, spec.workers.size))
        outcome = await run(found, roster)
        ended_with = outcome.exit_code
        return outcome


async def gather(spec: JobSpec, joining: Joining, roster: Roster) -> JobSpec:
    """The job with the hosts that have come, once they have slots for its workers; waits without a limit.

    Ranks follow the hosts' names, whoever came first: the same hosts get the same ranks each time.
    """
    hosts = roster.hosts
    while (found := choose_hosts(hosts, spec.workers.size)) is None:
        hosts = await roster.other_than(hosts)
    names = frozenset(host.name for host in found)
    roster.shut(FULL)
    await roster.release(names)
    used = map_workers(found, spec.workers.size, joining.map_by, oversubscribe=False)
    workers, remote = replace(spec.workers, hosts=used), replace(spec.remote, hosts=names)
    return replace(spec, workers=workers, remote=remote)


def choose_hosts(hosts: tuple[Host, ...], size: int) -> tuple[Host, ...] | None:
    """The first of these that have so many slots together, by name; None while they have fewer."""
    chosen: list[Host] = []
    for host in hosts:
        chosen.append(host)
        if sum(each.slots for each in chosen) >= size:
            return tuple(sorted(chosen, key=_count_digits))
    return None


def choose_place(joining: Joining) -> Endpoint:
    """Where to listen: as asked, else where this machine goes out; never at all addresses unless that was asked."""
    if joining.bind is not None:
        return joining.bind
    return Endpoint(find_reachable(), FREE_PORT)


def find_reachable(address: str = "0.0.0.0") -> str:  # noqa: S104 - stands for no particular one
    """The address that other hosts use for this one; loopback on a machine without a network.

    That is the one from which it goes out into the world, or, where no way leads there, its first one.
    """
    if address not in ANY_ADDRESS:
        return address
    outward = sorted(find_own_outward(), key=lambda found: (":" in found, found))
    return next(iter(outward or [entry.address for entry in list_addresses()]), LOOPBACK)


def write_line(place: Endpoint | str, path: str) -> str:
    """The command that starts an agent: the token's file is in it, and not the token."""
    return f"hvdrun agent --join {place} --token-file {shlex.quote(path)}"


async def _tell_agents(spec: JobSpec, roster: Roster, notice: Callable[[str], None]) -> None:
    """Say who is there, whenever that has changed, but for what is said elsewhere.

    That is a static job's hosts once they are complete, and whom an elastic job has lost.
    """
    known: tuple[Host, ...] = ()
    while True:
        former, known = known, await roster.other_than(known)
        is_news = not frozenset(known) <= frozenset(former)
        if is_news if spec.is_elastic else choose_hosts(known, spec.workers.size) is None:
            notice(describe_agents(known, spec.workers.size))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def describe_agents(hosts: tuple[Host, ...], size: int) -> str:
    """Who has come, and how much is missing."""
    named = [f"{host.name} ({count_slots(host.slots)})" for host in hosts[:_NAMED]]
    more = [f"and {len(hosts) - _NAMED} more"] if len(hosts) > _NAMED else []
    slots = sum(host.slots for host in hosts)
    offered = f"{slots} of {count_slots(size)}" if slots < size else count_slots(slots)
    return f"agents: {', '.join([*named, *more]) or 'none'}; {offered}."


async def _unless_stopped(gathering: Coroutine[object, object, JobSpec]) -> JobSpec | Outcome:
    """Wait for the hosts, or for a signal: then nothing has begun."""
    stopped: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def end(outcome: Outcome) -> None:
        if not stopped.done():
            stopped.set_result(outcome)

    with answer_signals(
        lambda code, reason: end(stop(code, reason)),
        lambda: os.kill(os.getpid(), signal.SIGSTOP),
        lambda: end(end_as_noticed()),
    ):
        return await _either(gathering, stopped)


async def _either(working: Coroutine[object, object, T], ending: asyncio.Future[U]) -> T | U:
    """What the work comes to, or, where that is there first, what ends it."""
    work = asyncio.create_task(working)
    either: set[asyncio.Future[Any]] = {work, ending}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    return ending.result() if work.cancelled() else work.result()


def _count_digits(host: Host) -> list[tuple[bool, int, str]]:
    """Sorts node2 before node10."""
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in _DIGITS.split(host.name)]
