"""The story of an agent: take orders, start workers at once, attend the rendezvous, and leave nothing behind.

Orders come on standard input, the workers' output goes to standard output; both belong to the launcher. The end of the
order channel without a Release means that the launcher is gone: all workers are killed at once. So they are when the
server has not acknowledged a report for so long that its machine may be gone. The server counts this host as lost much
earlier, after the lease; but then it says so as soon as it is heard again, while one that was stopped, or asleep, has
counted nobody as lost.

Before it is told of the job, an agent says hello, and takes part in the connectivity check of the hosts if it is asked;
later it does so whenever another host is to join. Other hosts may take long to start; it waits for as long as its
launcher goes on to say so.

gRPC is imported when the first workers have been started: it takes a tenth of a second that they need not wait for.

Long because all that comes to an agent (orders, signals, the end of its launcher) meets here.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hvdrun.agent.backend_check import CheckedSpawner
from hvdrun.agent.fork_spawner import ForkSpawner
from hvdrun.agent.lease import Lease, LeaseExpiredError
from hvdrun.agent.port import ReservedPort
from hvdrun.agent.probe_responder import ProbeResponder
from hvdrun.agent.resource_limits import find_missing_cpus
from hvdrun.agent.sequencing import Sequencing
from hvdrun.agent.spawn import WorkerEnvironment
from hvdrun.agent.standstill import Standstill
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.agent.watch import Watch
from hvdrun.processes.folder import AgentFolder, choose_folder, remove_orphans
from hvdrun.processes.processes import name_agent_origin
from hvdrun.processes.signals import answer_notice
from hvdrun.processes.watchdog import Watchdog
from hvdrun.shim.path import lead_to_shim
from hvdrun.spec.environment import is_elastic, lay_over
from hvdrun.version import __version__
from rendezvous.bootstrap import name_stop_file
from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Endpoint, limit_silence
from rendezvous.core.outcome import SIGNAL_OFFSET, TEMPORARY_FAILURE
from rendezvous.wire import codec
from rendezvous.wire.orders import (
    Alert,
    Begin,
    Hello,
    Hold,
    Input,
    ListAddresses,
    Order,
    ProbePeers,
    Release,
    Remark,
    Reserved,
    Stop,
    Taken,
    Wait,
)

if TYPE_CHECKING:
    from hvdrun.network.connectivity import Participant

_CHUNK_BYTES = 64 * 1024
_LOOKS_PER_LEASE = 6


class Ending(StrEnum):
    """Why an agent ends, in words for its launcher."""

    RELEASED = "it was released"
    LAUNCHER_GONE = "its launcher has gone"
    SIGNALLED = "a signal asked it to end"


class OrderReader:
    """The launcher's orders, one after the other; None at their end.

    exit_code: what an agent that has come by itself ends with, once it was released, or a signal has ended it.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.exit_code = 0
        self._reader = reader
        self._frames = codec.FrameReader()
        self._pending: list[Order] = []

    async def next(self) -> Order | None:
        """The next order."""
        while not self._pending:
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                return None
            self._pending += [codec.decode_order(data) for data in self._frames.feed(chunk)]
        order = self._pending.pop(0)
        if isinstance(order, Release):
            self.exit_code = order.exit_code
        return order

    async def skip(self) -> None:
        """Wait for their end."""
        while await self.next() is not None:
            pass


class Agent:
    """Serves one job on one host, from its Begin to its end.

    output: is open, and the agent's from now on.
    is_joined: it has come by itself: SIGTERM is a stop notice, as SIGUSR2 is, and a second one ends the agent.
    """

    def __init__(self, begin: Begin, folder: Path, output: OutputForwarder, *, is_joined: bool = False) -> None:
        self._begin = begin
        self._is_joined = is_joined
        self._folder = AgentFolder(folder)
        self._socket = folder / "agent.sock"
        silence_seconds = limit_silence(begin.lease_seconds)
        self._watchdog = Watchdog(name_agent_origin(begin.job, begin.host), folder, silence_seconds, self._warn)
        self._folder.make()  # now that there is somebody who will remove it
        self._output = output
        elastic = is_elastic(begin.environment)
        self._port = ReservedPort() if begin.master is None and not elastic else None
        self._master = begin.master if self._port is None else Endpoint(begin.address, self._port.number)
        environment = WorkerEnvironment(begin, self._socket, self._master)
        spawner = ForkSpawner(begin, environment, lambda text: self._output.tell(Remark(text)))
        self._input = InputFeed(lambda: self._output.tell(Taken()))
        self._lease = Lease(begin.patience_seconds)
        self._sequencing = Sequencing(begin, spawner, self._watchdog, self._warn)
        self._probe_responder = ProbeResponder(self._output.tell, self._fail)
        self._watch = Watch(
            begin.job,
            begin.host,
            CheckedSpawner(begin, spawner, self._watchdog),
            self._output,
            feed=self._input,
            watchdog=self._watchdog,
            outlives_losses=elastic,
            grace_seconds=begin.grace_seconds,
            claim=self._sequencing.note_end,
        )
        watched = (self._watch, self._sequencing, spawner) if elastic else (self._sequencing,)
        self._standstill = Standstill(watched, begin.lease_seconds)

    async def run(self, orders: OrderReader) -> Ending:
        """Carry out orders until one of the endings; then clear everything away."""
        if self._port is not None and self._master is not None:
            self._output.tell(Reserved(self._master))
        self._watch.open()
        attending = asyncio.create_task(self._attend())
        others = (self._obey(orders), self._await_signal(orders), self._standstill.run())
        parts: set[asyncio.Future[Any]] = {
            attending,
            self._watch.failure,
            *(asyncio.create_task(part) for part in others),
        }
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            ending: Ending = done.pop().result()
            if ending is Ending.RELEASED:
                await self._unless_left(orders, attending, self._watch.await_failed())
                await self._sequencing.close()
                await self._watch.close()
                await self._unless_left(orders, attending, self._output.close())
        finally:
            # Before the workers are killed: their ends are this agent's doing, and not to be reported as theirs.
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self._probe_responder.close()
            await self._sequencing.close()
            await self._watch.close()
            self._input.close()
            self._folder.remove()
            remove_orphans(os.environ)
            self._watchdog.end()
            if self._port is not None:
                self._port.close()
        return ending

    def note_notice(self) -> None:
        """A stop notice has come: the job drains this host, or stops."""
        self._watch.note_notice()

    async def _await_signal(self, orders: OrderReader) -> Ending:
        signalled = asyncio.Event()
        is_patient = self._is_joined

        def end(number: signal.Signals) -> None:
            orders.exit_code = SIGNAL_OFFSET + number
            signalled.set()

        def heed_sigterm() -> None:
            nonlocal is_patient
            if not is_patient:
                end(signal.SIGTERM)
            elif self._watch.running():
                is_patient = False
                self._watch.note_notice()
            else:
                orders.exit_code = TEMPORARY_FAILURE
                signalled.set()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR2, self._watch.note_notice)
        loop.add_signal_handler(signal.SIGTERM, heed_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):  # that one is ignored (nohup) is of no concern to the workers
            is_ignored = signal.getsignal(number) is signal.SIG_IGN
            loop.add_signal_handler(number, (lambda _: None) if is_ignored else end, number)
        await signalled.wait()
        return Ending.SIGNALLED

    async def _obey(self, orders: OrderReader) -> Ending:  # noqa: C901 - one case for each kind of order
        while True:
            match await orders.next():
                case Launch() as launch:
                    self._sequencing.expect(launch.assignment)
                    self._watch.launch(launch)
                case Terminate() as terminate:
                    self._watch.terminate(terminate)
                case Input(data):
                    self._input.write(data)
                case Stop():
                    name_stop_file(self._socket).touch()
                    self._sequencing.stop()
                case Hold(held):
                    self._lease.hold(held=held)
                case Release():
                    return Ending.RELEASED
                case None:
                    return Ending.LAUNCHER_GONE
                case ListAddresses() | ProbePeers() as question:
                    self._probe_responder.take(question)
                case Begin() | Wait():
                    pass  # what belongs before the start changes nothing after it

    async def _attend(self) -> NoReturn:
        """Serve the workers' calls and report to the server.

        Raises:
            LeaseExpiredError: no report was acknowledged for too long.
        """
        while not self._watch.changed.is_set():  # until the first worker was launched, for which there may be no order
            if not self._lease.look():
                raise LeaseExpiredError(self._lease.seconds, None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._begin.lease_seconds / _LOOKS_PER_LEASE):
                    await self._watch.changed.wait()
        await asyncio.to_thread(importlib.import_module, "hvdrun.agent.session")
        from hvdrun.agent.session import attend  # noqa: PLC0415 - see the module's docstring

        await attend(self._begin, self._socket, self._watch, self._lease, self._sequencing)
        raise AssertionError("attend() ends by raising")

    def _fail(self, error: BaseException) -> None:
        self._watch.fail(error)

    def _warn(self, text: str) -> None:
        """Tell the user, if it concerns somebody: workers that have ended need nothing any more."""
        if self._watch.running():
            self._output.tell(Alert(text))

    async def _unless_left(
        self, orders: OrderReader, attending: asyncio.Task[NoReturn], waiting: Coroutine[Any, Any, None]
    ) -> None:
        """Wait for what is left (failed workers, output to be taken) while the launcher is there: the lease goes on."""
        parts = {asyncio.create_task(waiting), asyncio.create_task(orders.skip())}
        await asyncio.wait({*parts, attending}, return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def serve_pipes(orders_descriptor: int, output_descriptor: int) -> Ending:
    """Be the agent that the launcher at the other end of these descriptors wants."""
    kind = os.fstat(orders_descriptor).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):  # /dev/null and files have no events to wait for
        return Ending.LAUNCHER_GONE
    reader = asyncio.StreamReader()
    pipe = os.fdopen(orders_descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    output = OutputForwarder()
    await output.open(output_descriptor)
    return await serve(OrderReader(reader), output)


async def serve(
    orders: OrderReader,
    output: OutputForwarder,
    note_begin: Callable[[Begin], None] = lambda _: None,
    *,
    is_joined: bool = False,
) -> Ending:
    """Be the agent that the launcher at the other end wants; see `Agent`. note_begin is called when its job begins.

    Whoever calls this for an agent that has come by itself answers signals until then.
    """
    is_noticed = asyncio.Event()
    if not is_joined:
        answer_notice(is_noticed.set)
    output.tell(Hello(__version__, socket.gethostname(), ".".join(map(str, sys.version_info[:3]))))
    begin = await prepare(orders, output)
    if isinstance(begin, Ending):
        return begin
    note_begin(begin)
    if (missing := find_missing_cpus(os.environ, len(os.sched_getaffinity(0)))) is not None:
        output.tell(Alert(missing))
    environment = lay_over(os.environb, begin.environment) if begin.inherits else begin.environment
    begin = replace(begin, environment=lead_to_shim(environment))
    agent = Agent(begin, choose_folder(os.environ), output, is_joined=is_joined)
    if is_noticed.is_set():
        agent.note_notice()
    return await agent.run(orders)


async def prepare(orders: OrderReader, output: OutputForwarder) -> Begin | Ending:
    """Take part in a connectivity check, if there is one, until the job begins, or it is clear that it will not."""
    participant: Participant | None = None
    limit_seconds: float | None = None
    try:
        while True:
            async with asyncio.timeout(limit_seconds):
                order = await orders.next()
            match order:
                case Begin() as begin:
                    return begin
                case Wait(seconds):
                    limit_seconds = seconds
                case ListAddresses(token, host):
                    if participant is not None:
                        participant.close()
                    participant = _make_participant(token, host)
                    output.tell(await participant.list_addresses())
                case ProbePeers(targets) if participant is not None:
                    output.tell(await participant.probe(targets))
                case Release():
                    return Ending.RELEASED
                case _:
                    return Ending.LAUNCHER_GONE
    except TimeoutError:
        return Ending.LAUNCHER_GONE
    finally:
        if participant is not None:
            participant.close()


def _make_participant(token: bytes, host: str) -> "Participant":
    from hvdrun.network.connectivity import Participant  # noqa: PLC0415 - a job on one host needs no check

    return Participant(token, host)
