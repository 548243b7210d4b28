"""How long the agents of many hosts take to start over ssh with a slow network: hvdrun's agent pool over a model of it.

Each way to a host waits for as many round trips as a real one, behind the same gate. They were counted with paramiko,
OpenSSH and 200 ms between them: connection, versions, keys and authentication are seven, session, command and the
agent's first words are two; and Python takes its time to start the agent there.
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
    """A way to a host that waits, and does nothing else; see `hvdrun.transport.transport.Transport`."""

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate = gate
        self._closed = asyncio.Event()

    async def open(self) -> None:
        """Wait as long as a login and an agent's start take."""
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
    """The seconds until so many agents have started."""
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
