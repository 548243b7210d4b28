"""How an agent takes part in the rendezvous: it relays its workers' calls, and reports to renew its lease."""

import asyncio
import contextlib
from pathlib import Path

import rendezvous.quiet_grpc  # noqa: F401 - before gRPC itself: see there

# isort: split
from hvdrun.agent.lease import Lease, LeaseExpiredError
from hvdrun.agent.watch import Watch
from rendezvous.client import AgentClient
from rendezvous.core.events import Exited
from rendezvous.errors import UnreachableError
from rendezvous.orders import Begin
from rendezvous.relay import Relay, Sequencing

REPORTS_PER_LEASE = 6
# Of a lease: how long one report may wait for its answer, behind much output on a busy connection. A connection that
# is dead is noticed by itself; and the lease wants looks that are closer than half of it.
_ANSWER_SHARE = 1 / 3
# Each report names every worker, and thousands change one by one: their reports must not be all that both sides do.
SECONDS_PER_WORKER = 0.0001
MAX_ERROR_CHARACTERS = 1_000_000  # in a report, which has a largest size


async def attend(begin: Begin, socket: Path, watch: Watch, lease: Lease, sequencing: Sequencing) -> None:
    """Serve and report, until cancelled.

    Raises:
        LeaseExpiredError: no report has been acknowledged for the lease.
        CallRefusedError, WireError: the server and this agent do not understand each other.
        ListenError: the socket cannot be made.
    """
    client = AgentClient(begin.server, begin.host, begin.credential, lease.seconds)
    relay = Relay(begin.host, client, sequencing, watch.note_failure)
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
    """Report every change soon, few at once, and that there is none often enough to keep the lease."""
    pause_seconds = lease.seconds / REPORTS_PER_LEASE
    number = 0
    failure: UnreachableError | None = None
    while lease.look():
        watch.changed.clear()
        number += 1
        ends = choose_ends(watch.ended())
        running = watch.running()
        try:
            await client.report(number, running, ends, min(pause_seconds, lease.left_seconds))
        except UnreachableError as error:
            failure = error
            await asyncio.sleep(min(pause_seconds, lease.left_seconds, 0.1))
            continue
        failure = None
        lease.renew()
        watch.acknowledge(ends)
        await asyncio.sleep(min(pause_seconds, (len(running) + len(ends)) * SECONDS_PER_WORKER))
        if watch.ended():
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_seconds):  # wait_for would swallow a cancellation that comes with a change
                await watch.changed.wait()
    raise LeaseExpiredError(lease.seconds, failure)


def choose_ends(ends: tuple[Exited, ...]) -> tuple[Exited, ...]:
    """As many of the ends, in their order, as fit into one report: one at least."""
    total = 0
    for position, end in enumerate(ends):
        total += len(end.error or "")
        if position and total > MAX_ERROR_CHARACTERS:
            return ends[:position]
    return ends
