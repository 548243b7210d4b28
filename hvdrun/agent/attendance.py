"""How an agent takes part in the rendezvous: it relays its workers' calls, and reports to renew its lease."""

import asyncio
import contextlib
from pathlib import Path

from hvdrun.agent.lease import Lease
from hvdrun.agent.watch import Watch
from rendezvous.client import AgentClient
from rendezvous.errors import UnreachableError
from rendezvous.orders import Begin
from rendezvous.relay import Relay

REPORTS_PER_LEASE = 6


async def attend(begin: Begin, socket: Path, watch: Watch, lease: Lease) -> None:
    """Serve and report; return when no report has been acknowledged for the lease.

    Raises:
        CallRefusedError, WireError: the server and this agent do not understand each other.
        ListenError: the socket cannot be made.
    """
    client = AgentClient(begin.server, begin.host, begin.credential)
    relay = Relay(begin.host, client)
    parts: set[asyncio.Task[None]] = set()
    try:
        await relay.open(socket)
        parts = {asyncio.create_task(relay.follow_server()), asyncio.create_task(_report(client, watch, lease))}
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await relay.close()
        await client.close()


async def _report(client: AgentClient, watch: Watch, lease: Lease) -> None:
    """Report every change at once, and that there is none often enough to keep the lease."""
    pause_seconds = lease.seconds / REPORTS_PER_LEASE
    number = 0
    while lease.look():
        watch.changed.clear()
        number += 1
        ends = watch.ended()
        try:
            await client.report(number, watch.running(), ends, pause_seconds)
        except UnreachableError:
            await asyncio.sleep(min(pause_seconds, 0.1))
            continue
        lease.renew()
        watch.acknowledge(ends)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_seconds):  # wait_for would swallow a cancellation that comes with a change
                await watch.changed.wait()
