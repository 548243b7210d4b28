"""An agent's session with the rendezvous: it relays its workers' calls, and its reports are its heartbeat."""

import asyncio
import contextlib
from pathlib import Path

import rendezvous.server.serving  # noqa: F401 - imported before gRPC, whose log it turns off

# isort: split
from hvdrun.agent.launcher_link import LauncherLink
from hvdrun.agent.launcher_timeout import LauncherTimeout, ServerTimeout
from hvdrun.agent.watch import Watch
from hvdrun.errors import AgentResourceError
from hvdrun.processes.background import cancel_and_wait
from rendezvous.client import AgentClient, Pauses
from rendezvous.core.messages import Exited
from rendezvous.core.model import REPORTS_PER_LEASE
from rendezvous.errors import UnreachableError
from rendezvous.server.relay import Relay, SequencerProvider
from rendezvous.wire.orders import Begin

# Each report names every worker, and thousands may change one by one: reports must not take all the time of both sides.
SECONDS_PER_WORKER = 0.0001
MAX_ERROR_CHARACTERS = 1_000_000  # in a report, whose size is limited


async def attend(
    begin: Begin,
    socket: Path,
    watch: Watch,
    launcher_timeout: LauncherTimeout,
    sequencing: SequencerProvider,
    *,
    link: LauncherLink | None = None,
) -> None:
    """Serve calls and report, until cancelled.

    link: takes orders and delivers messages, in a job that outlives its launcher.

    Raises:
        LauncherTimeoutError, ServerTimeoutError: no report has been acknowledged for too long.
        CallRefusedError, WireError: the server and this agent disagree about the protocol.
        AgentResourceError: the socket cannot be created.
        ListenError: gRPC cannot listen on it.
    """
    client = AgentClient(begin.server, begin.host, begin.credential, begin.lease_seconds, is_patient=link is not None)
    relay = Relay(begin.host, client, sequencing, watch.note_failure, watch.note_outcome, fail=watch.fail)
    parts: set[asyncio.Task[None]] = set()

    try:
        try:
            await relay.open(socket)
        except OSError as error:
            raise AgentResourceError(begin.host, f"create its socket {socket}", error) from error
        report = _report(client, watch, launcher_timeout, begin.lease_seconds / REPORTS_PER_LEASE)
        parts = {
            asyncio.create_task(relay.follow_server(), name="follow the server"),
            asyncio.create_task(report, name="report to the server"),
        }
        if link is not None:
            parts.add(asyncio.create_task(link.obey(client), name="obey the launcher's stream"))
            parts.add(asyncio.create_task(link.deliver(client), name="deliver messages to the launcher"))
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        await cancel_and_wait(parts)
        await relay.close()
        await client.close()


async def _report(client: AgentClient, watch: Watch, launcher_timeout: LauncherTimeout, pause_seconds: float) -> None:
    """Report changes soon, several in one report, and report often enough to keep the lease."""
    number = 0
    pauses = Pauses(is_patient=isinstance(launcher_timeout, ServerTimeout))
    failure: UnreachableError | None = None
    while launcher_timeout.look():
        watch.changed.clear()
        number += 1
        ends = choose_ends(watch.ended())
        running = watch.running()
        launcher_timeout.note_running(is_running=bool(running))

        try:
            limit_seconds = min(pause_seconds, launcher_timeout.left_seconds)
            await client.report(
                number,
                running,
                ends,
                limit_seconds,
                is_noticed=watch.is_noticed,
                signal=watch.signal,
                has_world=watch.has_world,
                sequencer_end=watch.sequencer_end,
            )
        except UnreachableError as error:
            failure = error
            await asyncio.sleep(min(pause_seconds, launcher_timeout.left_seconds, pauses.next()))
            continue

        failure = None
        pauses.reset()
        launcher_timeout.restart()
        watch.acknowledge(ends)
        await asyncio.sleep(min(pause_seconds, (len(running) + len(ends)) * SECONDS_PER_WORKER))

        if watch.ended():
            continue
        with contextlib.suppress(TimeoutError):  # the report is also the heartbeat
            async with asyncio.timeout(pause_seconds):  # wait_for would swallow a cancellation that comes with a change
                await watch.changed.wait()

    raise launcher_timeout.make_error(failure)


def choose_ends(ends: tuple[Exited, ...]) -> tuple[Exited, ...]:
    """The first of these ends that fit into one report; at least one."""
    total = 0
    for position, end in enumerate(ends):
        total += len(end.error or "")
        if position and total > MAX_ERROR_CHARACTERS:
            return ends[:position]
    return ends
