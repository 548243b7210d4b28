"""Brings a host into an elastic job when its first worker is to be started: an agent, a way, the news of the job.

Nothing here waits for a host that the others could go on without: agents are started beside each other, and those that
are there are brought in together. What fails is told as the loss of that host.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from hvdrun.errors import HostFaultError, HostsOverdueError, LaunchError
from hvdrun.hosts.fleet import Fleet
from hvdrun.hosts.route_map import Answer
from hvdrun.hosts.routes import Route, check_version
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.transport import Transport

FIRST_SECONDS = 10.0  # how long the first hosts that are there wait for the others, since all may be needed
GATHER_SECONDS = 1.0  # the same later, or when they are enough: hosts that come together are surveyed together


class Ways(Protocol):
    """Finds the ways of newcomers (`hvdrun.hosts.route_map.RouteMap`)."""

    async def extend(self, spec: JobSpec, newcomers: list[str]) -> dict[str, Answer]:
        """See `RouteMap.extend`."""


class Recruiter:
    """Starts agents and brings them in; belongs to one event loop.

    look: the job as it is known now.
    reach: the transport to a host.
    begin: takes a host that is connected, with its ways, to be told of the job.
    fail: takes a host that could not be brought in, and why.
    """

    def __init__(
        self,
        fleet: Fleet,
        ways: Ways,
        *,
        look: Callable[[], JobSpec],
        reach: Callable[[str], Transport],
        begin: Callable[[str, Route], None],
        fail: Callable[[str, LaunchError], None],
    ) -> None:
        self._fleet = fleet
        self._ways = ways
        self._look = look
        self._reach = reach
        self._begin = begin
        self._fail = fail
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._ready: list[str] = []
        self._changed = asyncio.Event()
        self._patience_seconds = FIRST_SECONDS

    def want(self, host: str) -> None:
        """See to it that the host has an agent that takes orders, now or later."""
        if host in self._fleet.hosts:
            return
        self._fleet.add(host, self._reach(host))
        self._opening[host] = asyncio.create_task(self._open(host))

    def forget(self, host: str) -> None:
        """The host is not wanted any more."""
        opening = self._opening.pop(host, None)
        if opening is not None:
            opening.cancel()
        if host in self._ready:
            self._ready.remove(host)

    async def run(self) -> None:
        """Bring in whoever is ready, until cancelled; whoever is being started then is called off."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._ready:
                    await self._gather()
                    await self._bring_in()
        finally:
            openings = tuple(self._opening.values())
            for opening in openings:
                opening.cancel()
            await asyncio.gather(*openings, return_exceptions=True)

    async def _open(self, host: str) -> None:
        spec = self._look()
        try:
            async with asyncio.timeout(spec.limits.start_timeout_seconds):
                await self._fleet.open_one(host)
                await check_version(spec, self._fleet, host)
        except TimeoutError:
            self._give_up(host, HostsOverdueError((host,), spec.limits.start_timeout_seconds))
        except LaunchError as error:
            self._give_up(host, error)
        except Exception as error:  # noqa: BLE001 - the job goes on without this host, and is told why
            self._give_up(host, HostFaultError(host, error))
        else:
            del self._opening[host]
            self._ready.append(host)
        self._changed.set()

    def _give_up(self, host: str, error: LaunchError) -> None:
        del self._opening[host]
        self._fail(host, error)

    async def _gather(self) -> None:
        """Wait for those who are on their way, but not for long."""
        began = time.monotonic()
        while self._opening:
            patience_seconds = min(self._patience_seconds, GATHER_SECONDS if self._is_enough() else math.inf)
            if (left := began + patience_seconds - time.monotonic()) <= 0:
                break
            await asyncio.wait(self._opening.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    def _is_enough(self) -> bool:
        """The job can start with those that are ready."""
        spec = self._look()
        return sum(host.slots for host in spec.workers.hosts if host.name in self._ready) >= spec.workers.size

    async def _bring_in(self) -> None:
        batch, self._ready = self._ready, []
        answers = await self._ways.extend(self._look(), batch)
        for host, answer in answers.items():
            if host not in self._fleet.hosts or host in self._opening or self._fleet.has_begun(host):
                continue  # it was left meanwhile, or is another agent's now
            if isinstance(answer, LaunchError):
                self._fail(host, answer)
            else:
                self._patience_seconds = GATHER_SECONDS
                self._begin(host, answer)
