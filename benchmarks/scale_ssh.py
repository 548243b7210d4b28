"""Time to start the agents of many hosts over ssh on a slow network: hvdrun's agent pool with a model of the network.

Each connection to a host waits for as many round trips as a real one, with the same limit of concurrent connections.
The round trips were counted with paramiko, OpenSSH and 200 ms: seven for connection, versions, keys and authentication;
two for session, command and the agent's first message. Python's time to start the agent is added.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.processes.background import BackgroundTasks
from hvdrun.transport.transport import MAX_AT_ONCE
from rendezvous.wire.orders import AgentMessage, Order

ROUND_TRIP_SECONDS = 0.2
LOGIN_ROUND_TRIPS = 7  # at most MAX_AT_ONCE hosts at a time
START_ROUND_TRIPS = 2
BOOT_SECONDS = 0.4


class SlowTransport:
    """A transport that only waits; see `hvdrun.transport.transport.Transport`."""

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate = gate
        self._closed = asyncio.Event()

    async def open(self) -> None:
        """Wait for the time of a login and of an agent's start."""
        async with self._gate:
            await asyncio.sleep(LOGIN_ROUND_TRIPS * ROUND_TRIP_SECONDS)
        await asyncio.sleep(START_ROUND_TRIPS * ROUND_TRIP_SECONDS + BOOT_SECONDS)

    def send(self, order: Order) -> None:
        """Nobody is there."""

    async def messages(self) -> AsyncIterator[AgentMessage]:
        """Nothing, until it is closed."""
        await self._closed.wait()
        nothing: tuple[AgentMessage, ...] = ()
        for message in nothing:
            yield message

    async def wait(self) -> str:
        """See `Transport`."""
        return "it was closed"

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        return port

    async def kill(self) -> None:
        """See `Transport`."""
        self._closed.set()

    async def close(self) -> None:
        """See `Transport`."""
        self._closed.set()


def measure(hosts: int) -> float:
    """The seconds until the agents of `hosts` hosts have started."""
    return asyncio.run(_open(hosts))


async def _open(hosts: int) -> float:
    gate, tasks = asyncio.Semaphore(MAX_AT_ONCE), BackgroundTasks()
    pool = AgentPool(tasks, _ignore, lambda _host, _how: None)
    names = [f"host-{number}" for number in range(hosts)]
    for name in names:
        pool.add(name, SlowTransport(gate))
    began = time.monotonic()
    try:
        async with tasks:
            await asyncio.gather(*map(pool.open, names))
            return time.monotonic() - began
    finally:
        await pool.close()


async def _ignore(_: AgentMessage) -> None:
    """No agent tells anything."""
