"""The story of a job, top to bottom.

The agents are started first, and what they need is made while they boot: gRPC is imported, the job's certificates are
issued, the server opens.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from hvdrun.agent.processes import name_origin
from hvdrun.briefing import Briefing
from hvdrun.console import Console, Page, measure_start
from hvdrun.errors import HostLostEarlyError, HostsOverdueError
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec
from hvdrun.routes import find_routes
from hvdrun.signals import answer_signals
from hvdrun.stdin import StdinReader
from hvdrun.transport.reach import reach_all
from rendezvous.core.effects import Effect, Finish, Launch, Terminate
from rendezvous.core.events import Begun, Exited, HostsChanged, Lost, Stopped
from rendezvous.core.leases import is_lost
from rendezvous.core.model import Endpoint
from rendezvous.core.outcome import SIGNAL_OFFSET, Cause, Outcome, stop
from rendezvous.core.placement import place
from rendezvous.orders import Alert, Begin, Output, OutputStream, Remark, Reserved, Taken, Telling

if TYPE_CHECKING:
    from rendezvous.authority import Authority
    from rendezvous.server import Server

_HOLD_SECONDS = 0.1  # for the orders to leave before this process stops
_PATIENT_STOPS = 2  # signals; a third one waits for nobody, not for a host either that is cut off
_HURRIED_CLOSE_SECONDS = 1.0  # for what is near enough to be ended properly even then
_AGENT_START_SECONDS = 0.05  # an agent on this machine is started in a fraction of it; then it boots beside us


def launch(spec: JobSpec, console: Console) -> int:
    """Run the job to its end; the exit code.

    Raises:
        LaunchError: hvdrun could not do its part.
    """

    async def run() -> int:
        return await Job(spec, console).run()

    return asyncio.run(run())


class Job:
    """One job from its agents' start to its last line of output."""

    def __init__(self, spec: JobSpec, console: Console) -> None:
        around = name_origin(os.environ)
        token = secrets.token_hex(8)
        self._id = f"{around}/{token}" if around else token  # what runs inside a worker is that worker's as well
        self._spec = spec
        self._console = console
        self._placement = place(spec.hosts, spec.size, spec.size)
        hosts = dict.fromkeys(slot.host for slot in self._placement)
        patience_seconds = spec.lease_seconds if spec.remote.hosts else None
        self._fleet = Fleet(reach_all(hosts, spec), self._show, self._lose, patience_seconds)
        self._server: Server
        self._master: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._decided_at: float | None = None  # when the first worker had to be ended
        self._ended_ranks: set[int] = set()
        self._stops = 0
        self._stdin: StdinReader | None = None
        self._hurry = asyncio.Event()
        self._start_line = console.make_start_line(
            lambda: measure_start(self._server.state), spec.start_timeout_seconds
        )

    async def run(self) -> int:
        """Run the job; its exit code."""
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_fleet)
            opening = asyncio.create_task(self._fleet.open())
            stack.push_async_callback(_abandon, opening)
            await asyncio.wait({opening}, timeout=_AGENT_START_SECONDS)
            self._server, authority = await self._make_server(stack)
            stack.enter_context(answer_signals(self._stop, self._suspend))
            self._console.output.call_when_closed(self._lose_reader)
            self._stdin = self._open_stdin(stack)
            self._server.tell(HostsChanged(self._spec.hosts))
            self._start_line.open(started)
            stack.callback(self._start_line.close)
            await self._unless_decided(self._begin(opening, authority))
            outcome = await self._outcome
            await self._unless_hurried(self._fleet.release(lambda host: is_lost(self._server.state, host)))
            self._finish_output()
            self._explain(outcome, (self._decided_at or time.monotonic()) - started)
            await self._unless_hurried(self._console.output.close(limit_seconds=None))
            await self._console.output.close(limit_seconds=0)  # does nothing, unless a signal said not to wait
        return outcome.exit_code

    def _open_stdin(self, stack: AsyncExitStack) -> StdinReader | None:
        rank = self._spec.stdin_rank
        if rank is None:
            return None
        host = self._placement[rank].host
        reader = StdinReader(lambda data: self._fleet.feed(host, data))
        stack.callback(reader.close)
        return reader

    async def _make_server(self, stack: AsyncExitStack) -> "tuple[Server, Authority]":
        from rendezvous.authority import Authority  # noqa: PLC0415 - the agents boot meanwhile
        from rendezvous.server import Server  # noqa: PLC0415 - the same

        authority = Authority(self._id)
        server = Server(self._spec.policy(), self._carry_out, authority.issue_server())
        return await stack.enter_async_context(server), authority

    async def _begin(self, opening: asyncio.Task[None], authority: "Authority") -> None:
        """Tell the agents of the job; the first one, of rank 0's host, reserves a port that the others must know."""
        await self._wait_for_agents(opening)
        routes = await find_routes(self._spec, self._fleet, self._server, self._console.verbose)
        ends = dict.fromkeys(str(route.server) for route in routes.values())
        self._console.verbose(f"job {self._id}: the rendezvous listens on {', '.join(ends)}")
        briefing = Briefing(self._spec, self._id, authority, self._console.verbose)
        first, *others = self._fleet.hosts
        self._begin_on(first, briefing.write(first, routes[first], master=None))
        if others:
            master = await self._master
            for host in others:
                self._begin_on(host, briefing.write(host, routes[host], master=master))

    def _begin_on(self, host: str, begin: Begin) -> None:
        self._fleet.begin(host, begin)
        if self._spec.is_remote(host):
            self._server.tell(Begun(host))

    async def _wait_for_agents(self, opening: asyncio.Task[None]) -> None:
        limit_seconds = self._spec.start_timeout_seconds
        done, _ = await asyncio.wait({opening}, timeout=limit_seconds)
        if not done:
            raise HostsOverdueError(self._fleet.awaited, limit_seconds)
        opening.result()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Launch(worker, _, reason):
                self._console.verbose(f"launch {worker}: {reason}")
                self._fleet.order(effect)
            case Terminate(worker, _, reason):
                self._console.verbose(f"terminate {worker}: {reason}")
                self._decided_at = self._decided_at or time.monotonic()
                if self._fleet.has_begun(worker.slot.host):
                    self._ended_ranks.add(self._server.state.rank_of(worker))
                    self._fleet.order(effect)
                else:
                    self._fleet.withdraw(worker)
                    self._server.tell(Exited(worker, -signal.SIGTERM, "it was not started any more"))
            case Finish(outcome) if not self._outcome.done():
                self._decided_at = self._decided_at or time.monotonic()
                self._outcome.set_result(outcome)
            case _:
                pass

    async def _show(self, telling: Telling) -> None:
        match telling:
            case Output(worker, stream, data):
                self._start_line.close()
                rank = self._server.state.rank_of(worker)
                await self._console.output.write(rank, worker.slot.host, stream, data)
            case Remark(text):
                self._console.verbose(text)
            case Alert(text):
                self._console.notice(text)
            case Taken() if self._stdin is not None:
                self._stdin.ask()
            case Reserved(master):
                self._master.set_result(master)

    def _lose(self, host: str, how: str) -> None:
        if self._fleet.has_begun(host):
            self._server.tell(Lost(host, how))
        elif self._decided_at is None and not self._outcome.done():
            self._outcome.set_exception(HostLostEarlyError(host, how))
            self._outcome.exception()  # taken notice of, should the survey fail first for the same reason

    def _lose_reader(self, stream: OutputStream, error: OSError) -> None:
        """Nobody reads hvdrun's output any more: end as any program in a broken pipe would."""
        if isinstance(error, BrokenPipeError) and stream is OutputStream.STDOUT:
            self._stop(SIGNAL_OFFSET + signal.SIGPIPE, "the reader of standard output has gone")

    def _stop(self, code: int, reason: str) -> None:
        """The first time the workers have the grace, the second time none, and from then on nothing is waited for."""
        self._stops += 1
        if self._outcome.done() or self._stops > _PATIENT_STOPS:
            self._hurry.set()
        self._server.tell(Stopped(code, reason, at_once=self._stops == _PATIENT_STOPS))
        if self._stops > _PATIENT_STOPS and not self._outcome.done():
            self._outcome.set_result(self._server.state.outcome or stop(code, reason))

    def _suspend(self) -> None:
        """Ctrl-Z: stop as asked, and go on with `fg`; the workers go on training, and nobody dies of the silence."""
        self._start_line.close()
        self._fleet.hold(held=True)
        asyncio.get_running_loop().call_later(_HOLD_SECONDS, self._stop_and_go_on)

    def _stop_and_go_on(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        self._fleet.hold(held=False)

    async def _unless_decided(self, starting: Coroutine[Any, Any, None]) -> None:
        """Go on with the start until it is done, or until the job has ended before (a signal, a host that was lost)."""
        start = asyncio.create_task(starting)
        either: set[asyncio.Future[Any]] = {start, self._outcome}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            start.cancel()
            await asyncio.wait({start})
        if not start.cancelled():
            start.result()

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait for whoever reads hvdrun's output, be it `less`, until a signal says not to."""
        parts = {asyncio.ensure_future(waiting), asyncio.create_task(self._hurry.wait())}
        done, pending = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in pending:
            part.cancel()
        for part in done:
            part.result()

    async def _close_fleet(self) -> None:
        closing = asyncio.create_task(self._fleet.close())
        await self._unless_hurried(asyncio.wait({closing}))
        await asyncio.wait({closing}, timeout=_HURRIED_CLOSE_SECONDS)
        if closing.done():
            closing.result()
        await _abandon(closing)

    def _finish_output(self) -> None:
        """Show the last line of each worker, where it was not complete."""
        for slot in self._placement:
            self._console.output.finish(self._server.state.workers[slot].assignment.rank, slot.host)

    def _name_place(self, outcome: Outcome) -> str:
        """Where a command could not be started, if it is not here."""
        if outcome.cause is not Cause.COMMAND_NOT_STARTED or outcome.worker is None or len(self._fleet.hosts) == 1:
            return ""
        return f"on the host {outcome.worker.slot.host!r}, "

    def _explain(self, outcome: Outcome, seconds: float) -> None:
        """Say why the job did not end well."""
        if outcome.cause is not Cause.WORKER_FAILED or outcome.worker is None or outcome.rank is None:
            if outcome.cause is not Cause.SUCCEEDED:
                self._console.notice(f"{self._name_place(outcome)}{outcome.reason.rstrip('.')}.")
            return
        slot = outcome.worker.slot
        self._console.page(
            Page(
                rank=outcome.rank,
                host=slot.host,
                slot=slot.index,
                returncode=outcome.returncode,
                seconds=seconds,
                last_lines=self._console.output.tail(outcome.rank, slot.host),
                ended_ranks=tuple(sorted(self._ended_ranks)),
            )
        )


async def _abandon(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait until it has ended; in whatever way."""
    task.cancel()
    await asyncio.wait({task})
