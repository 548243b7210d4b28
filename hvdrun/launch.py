"""The story of a job, top to bottom.

The agents are started first, and what they need is made while they boot: gRPC is imported, the job's certificates are
issued, the server opens.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from hvdrun.agent.processes import name_origin
from hvdrun.console import Console, Page, measure_start
from hvdrun.environment import THREADS, choose_environment
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec
from hvdrun.stdin import StdinReader
from hvdrun.transport.reach import reach
from rendezvous.core.effects import Effect, Finish, Launch, Terminate
from rendezvous.core.events import HostsChanged, Lost, Stopped
from rendezvous.core.model import Endpoint
from rendezvous.core.outcome import SIGNAL_OFFSET, Cause, Outcome
from rendezvous.core.placement import place
from rendezvous.orders import Begin, Output, OutputStream, Remark, Reserved, Taken, Telling

if TYPE_CHECKING:
    from rendezvous.authority import Authority
    from rendezvous.server import Server

LOOPBACK = "127.0.0.1"
_HOLD_SECONDS = 0.1  # for the orders to leave before this process stops


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
        self._fleet = Fleet({host: reach(host) for host in hosts}, self._show, self._lose)
        self._server: Server
        self._master: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._decided_at: float | None = None  # when the first worker had to be ended
        self._ended_ranks: set[int] = set()
        self._stopped = False
        self._stdin: StdinReader | None = None
        self._hurry = asyncio.Event()
        self._start_line = console.make_start_line(
            lambda: measure_start(self._server.state), spec.start_timeout_seconds
        )

    async def run(self) -> int:
        """Run the job; its exit code."""
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._fleet.close)
            await self._fleet.open()
            self._server, authority, port = await self._open_server(stack)
            stack.enter_context(self._signals_stop_the_job())
            self._console.output.call_when_closed(self._lose_reader)
            self._stdin = self._open_stdin(stack)
            self._server.tell(HostsChanged(self._spec.hosts))
            self._start_line.open(started)
            stack.callback(self._start_line.close)
            await self._begin(authority, port)
            outcome = await self._outcome
            await self._unless_hurried(self._fleet.release())
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

    async def _open_server(self, stack: AsyncExitStack) -> "tuple[Server, Authority, int]":
        from rendezvous.authority import Authority  # noqa: PLC0415 - the agents boot meanwhile
        from rendezvous.server import Server  # noqa: PLC0415 - the same

        authority = Authority(self._id)
        server = Server(self._spec.policy(), self._carry_out, authority.issue_server())
        await stack.enter_async_context(server)
        port = await server.open(LOOPBACK)
        self._console.verbose(f"job {self._id}: the rendezvous listens on {LOOPBACK}:{port}")
        return server, authority, port

    async def _begin(self, authority: "Authority", port: int) -> None:
        """Tell the agents of the job; the first one, of rank 0's host, reserves a port that the others must know."""
        first, *others = self._fleet.hosts
        self._fleet.begin(first, self._describe(first, authority, port, master=None))
        if others:
            either: set[asyncio.Future[Any]] = {self._master, self._outcome}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for host in others if self._master.done() else ():
            self._fleet.begin(host, self._describe(host, authority, port, master=self._master.result()))

    def _describe(self, host: str, authority: "Authority", port: int, master: Endpoint | None) -> Begin:
        neighbours = sum(slot.host == host for slot in self._placement)
        environment = choose_environment(os.environb, neighbours)
        if environment.get(THREADS) != os.environb.get(THREADS):
            self._console.verbose(f"{neighbours} workers share {host}: OMP_NUM_THREADS=1, unless you set it")
        return Begin(
            job=self._id,
            host=host,
            server=f"{LOOPBACK}:{port}",
            credential=authority.issue_agent(host),
            command=self._spec.command,
            directory=str(self._spec.directory),
            environment=environment,
            lease_seconds=self._spec.lease_seconds,
            start_timeout_seconds=self._spec.start_timeout_seconds,
            address=LOOPBACK,
            master=master,
            stdin_rank=self._spec.stdin_rank,
            prefork=self._spec.prefork,
        )

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Launch(worker, _, reason):
                self._console.verbose(f"launch {worker}: {reason}")
                self._fleet.order(effect)
            case Terminate(worker, _, reason):
                self._console.verbose(f"terminate {worker}: {reason}")
                self._decided_at = self._decided_at or time.monotonic()
                self._ended_ranks.add(self._server.state.rank_of(worker))
                self._fleet.order(effect)
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
            case Taken() if self._stdin is not None:
                self._stdin.ask()
            case Reserved(master):
                self._master.set_result(master)

    def _lose(self, host: str, how: str) -> None:
        self._server.tell(Lost(host, how))

    def _lose_reader(self, stream: OutputStream, error: OSError) -> None:
        """Nobody reads hvdrun's output any more: end as any program in a broken pipe would."""
        if isinstance(error, BrokenPipeError) and stream is OutputStream.STDOUT:
            self._stop(SIGNAL_OFFSET + signal.SIGPIPE, "the reader of standard output has gone")

    def _stop(self, code: int, reason: str) -> None:
        """The first time the workers have the grace, the second time none, and from then on nothing is waited for."""
        at_once = self._stopped
        self._stopped = True
        if self._outcome.done():
            self._hurry.set()
        self._server.tell(Stopped(code, reason, at_once=at_once))

    @contextmanager
    def _signals_stop_the_job(self) -> Iterator[None]:
        """Answer signals, but for those that are ignored: nohup and a shell's `&` want it so."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
        former = {number: signal.getsignal(number) for number in numbers}
        answered = [number for number in numbers if former[number] is not signal.SIG_IGN]
        for number in answered:
            if number is signal.SIGTSTP:
                loop.add_signal_handler(number, self._suspend)
            else:
                loop.add_signal_handler(number, self._stop, SIGNAL_OFFSET + number, f"{number.name} came to hvdrun")
        try:
            yield
        finally:
            for number in answered:
                loop.remove_signal_handler(number)
                signal.signal(number, former[number])

    def _suspend(self) -> None:
        """Ctrl-Z: stop as asked, and go on with `fg`; the workers go on training, and nobody dies of the silence."""
        self._start_line.close()
        self._fleet.hold(held=True)
        asyncio.get_running_loop().call_later(_HOLD_SECONDS, self._stop_and_go_on)

    def _stop_and_go_on(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        self._fleet.hold(held=False)

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait for whoever reads hvdrun's output, be it `less`, until a signal says not to."""
        parts = {asyncio.ensure_future(waiting), asyncio.create_task(self._hurry.wait())}
        done, pending = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in pending:
            part.cancel()
        for part in done:
            part.result()

    def _finish_output(self) -> None:
        """Show the last line of each worker, where it was not complete."""
        for slot in self._placement:
            self._console.output.finish(self._server.state.workers[slot].assignment.rank, slot.host)

    def _explain(self, outcome: Outcome, seconds: float) -> None:
        """Say why the job did not end well."""
        if outcome.cause is not Cause.WORKER_FAILED or outcome.worker is None or outcome.rank is None:
            if outcome.cause is not Cause.SUCCEEDED:
                self._console.notice(f"{outcome.reason.rstrip('.')}.")
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
