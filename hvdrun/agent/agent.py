"""One agent: it obeys orders, starts workers, reports to the rendezvous, and leaves nothing behind.

Orders come on standard input, and the workers' output goes to standard output; the launcher is at the other end. The
end of the orders without a Release means that the launcher is gone: the agent kills all workers immediately. It does
the same when the server has acknowledged no report for so long that its machine may be gone (see `LauncherTimeout`).
The server counts this host as lost much earlier, after the lease, and reports that as soon as it is reached again.

In a job that outlives its launcher the end of the orders ends nothing, once the first worker is launched. When the
server is reached, orders come by it, too, and messages go to it, and wait where it is away (see `LauncherLink`). Only a
long silence ends the workers.

Before the job begins, the agent says hello, and takes part in the connectivity check of the hosts where the launcher
asks it to. Later it does so whenever another host joins. Other hosts may take long to start: the agent waits as long as
the launcher sends Wait.

gRPC is imported after the first workers have been started: the import takes a tenth of a second.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import stat
import traceback
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Any, NoReturn

from hvdrun.agent.accounts import Accounts
from hvdrun.agent.backend_check import CheckedSpawner
from hvdrun.agent.error_file import take_message
from hvdrun.agent.examiner import Examiner
from hvdrun.agent.fork_spawner import ForkSpawner
from hvdrun.agent.launcher_link import LauncherLink
from hvdrun.agent.launcher_timeout import LauncherTimeout, ServerTimeout, ServerTimeoutError
from hvdrun.agent.probe_responder import ProbeResponder
from hvdrun.agent.resource_limits import find_missing_cpus
from hvdrun.agent.sequencing import Sequencing
from hvdrun.agent.snapshot_folder import SnapshotFolder
from hvdrun.agent.spawn import MasterPorts, WorkerEnvironment
from hvdrun.agent.spool import Spool
from hvdrun.agent.stack_reader import StackReader
from hvdrun.agent.stopped_detector import Owner, StoppedDetector
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.agent.watch import Watch
from hvdrun.errors import AgentResourceError, HvdrunError
from hvdrun.processes.background import cancel_and_wait, start_task
from hvdrun.processes.child import Children
from hvdrun.processes.folder import AgentFolder, choose_folder, remove_orphans
from hvdrun.processes.processes import name_agent_origin
from hvdrun.processes.scarcity import refuse_scarcity
from hvdrun.processes.signals import StopRequests, answer_notice
from hvdrun.processes.watchdog import Watchdog
from hvdrun.shim.path import prepend_shim
from hvdrun.spec.environment import merge_environments
from hvdrun.startup.early import STOPPING, has_foreign_handler
from hvdrun.startup.loading import load_all
from hvdrun.version import __version__
from rendezvous.bootstrap import name_stop_file
from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import limit_silence
from rendezvous.core.outcome import SIGNAL_OFFSET, TEMPORARY_FAILURE
from rendezvous.errors import RendezvousError
from rendezvous.wire import codec
from rendezvous.wire.hangs import AskStacks, GiveUp, WaitsReported
from rendezvous.wire.orders import (
    AgentFailed,
    Alert,
    Begin,
    Examine,
    Hello,
    Hold,
    Input,
    ListAddresses,
    Order,
    PassOn,
    ProbePeers,
    Release,
    Remark,
    Reserved,
    Stop,
    Taken,
    Wait,
)

_CHUNK_BYTES = 64 * 1024
_LOOKS_PER_LEASE = 6
_SILENCE_SHARE = 0.5  # of a lease, in which three reports are acknowledged
_RELEASED_SECONDS = 60.0  # for a launcher that was started again to take the last output
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.1, 2.0


class Ending(StrEnum):
    """Why an agent ends, as its launcher prints it."""

    RELEASED = "it was released"
    LAUNCHER_GONE = "its launcher disappeared"
    SIGNALLED = "a signal asked it to end"


class OrderReader:
    """Reads the launcher's orders.

    Args:
        reader: the agent's standard input, or the connection of an agent that has joined by itself.
        note_end: is called at the end of the orders of a launcher that the job outlives.

    exit_code: of an agent that has joined by itself, once it was released, or a signal has ended it.
    is_signalled: the agent was asked to end by a signal, also if its launcher has released it then.
    """

    def __init__(self, reader: asyncio.StreamReader, note_end: Callable[[], None] = lambda: None) -> None:
        self.exit_code = 0
        self.is_signalled = False
        self._note_end = note_end
        self._lasting: asyncio.Queue[Order] | None = None  # of all launchers
        self._reading: asyncio.Task[None] | None = None
        self._reader = reader
        self._frames = codec.FrameReader()
        self._pending: list[Order] = []

    async def next(self) -> Order | None:
        """The next order; None at their end."""
        if self._lasting is not None:
            order: Order | None = await self._lasting.get()
        else:
            order = await self._read()
        if isinstance(order, Release):
            self.exit_code = order.exit_code
        return order

    def outlast(self) -> None:
        """From now on the orders have no end, and come from `put`, too."""
        if self._lasting is None:
            self._lasting = asyncio.Queue()
            self._reading = start_task(self._read_to_end(), "read the launcher's orders")

    def put(self, order: Order) -> None:
        """Add an order that has come in another way."""
        if self._lasting is not None:
            self._lasting.put_nowait(order)

    async def close(self) -> None:
        """Read no more, after `outlast`."""
        await cancel_and_wait(filter(None, [self._reading]))

    async def _read(self) -> Order | None:
        while not self._pending:
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                return None
            self._pending += [codec.decode_order(data) for data in self._frames.feed(chunk)]
        return self._pending.pop(0)

    async def _read_to_end(self) -> None:
        with contextlib.suppress(OSError):  # the connection was cut
            while (order := await self._read()) is not None:
                self.put(order)
        self._note_end()

    async def skip(self) -> None:
        """Read orders to their end, and drop them."""
        while await self.next() is not None:
            pass


class Agent:
    """Serves one job on one host, from its Begin to its end.

    Args:
        begin: the launcher's configuration.
        folder: the agent's own, which does not exist yet.
        output: an open forwarder.
        is_joined: it has joined by itself. SIGTERM is a stop notice then, as SIGUSR2 is, and a second one ends the
            agent.
    """

    def __init__(self, begin: Begin, folder: Path, output: OutputForwarder, *, is_joined: bool = False) -> None:
        self._begin = begin
        self._is_joined = is_joined
        self._folder = AgentFolder(folder)
        remark, alert = (lambda text: output.tell(Remark(text))), (lambda text: output.tell(Alert(text)))
        self._snapshots = SnapshotFolder(folder, begin.environment, remark)
        self._socket = folder / "agent.sock"

        silence_seconds = limit_silence(begin.lease_seconds)
        self._children = Children()
        origin = name_agent_origin(begin.job, begin.host)
        self._watchdog = Watchdog(origin, [folder, self._snapshots.path], silence_seconds, self._warn, self._children)

        try:
            self._watchdog.start()
        except OSError as error:
            remedy = "raise the limits of processes and files"
            raise AgentResourceError(begin.host, "start its watchdog", error, remedy) from error

        try:
            self._folder.create()  # only now: the watchdog removes it after a kill
        except OSError as error:
            self._watchdog.end()
            raise AgentResourceError(begin.host, f"create its folder {folder}", error) from error

        self._output, self._accounts = output, Accounts(self._socket, output.tell)
        self._master_ports = MasterPorts(begin.address)
        spawner = ForkSpawner(begin, WorkerEnvironment(begin, self._socket, self._snapshots), remark, alert)

        self._input = InputFeed(lambda: self._output.tell(Taken()))
        self._launcher_timeout = self._make_timeout(begin)
        self._watch = Watch(
            begin.job,
            begin.host,
            CheckedSpawner(begin, spawner, self._watchdog),
            self._output,
            feed=self._input,
            children=self._children,
            watchdog=self._watchdog,
            outlives_losses=begin.outlives_losses,
            grace_seconds=begin.grace_seconds,
            take_message=partial(take_message, self._socket),
            finds_world=self._finds_world,
            accounts=self._accounts,
        )
        self._sequencing = Sequencing(
            begin,
            spawner,
            self._children,
            self._watchdog,
            self._warn,
            note_end=self._watch.note_sequencer_end,
            note_waits=lambda waits: output.tell(WaitsReported(waits)),
        )

        self._probe_responder = ProbeResponder(self._output.tell)
        self._stack_reader = StackReader(lambda: dict(self._watch.pids), self._output.tell)
        watched: list[Owner] = [self._sequencing]
        if begin.outlives_losses:
            watched += [self._watch, spawner]
        self._stopped_detector = StoppedDetector(watched, begin.lease_seconds)

    async def run(self, orders: OrderReader) -> Ending:
        """Obey orders until one of the endings; then leave nothing behind."""
        ending = await self._serve(orders)
        self._watch.raise_failure()  # of the cleanup
        return ending

    async def _serve(self, orders: OrderReader) -> Ending:
        self._watch.open()
        if self._is_lasting:
            self._output.keep(Spool(self._folder.path))
        attending = asyncio.create_task(self._attend(orders), name="attend to the workers")
        parts: set[asyncio.Task[Any]] = {
            attending,
            asyncio.create_task(self._obey(orders), name="obey the launcher"),
            asyncio.create_task(self._await_signal(orders), name="wait for a signal"),
            asyncio.create_task(self._stopped_detector.run(), name="look for stopped processes"),
            asyncio.create_task(self._look_for_world(), name="look for a world of torch.distributed"),
            asyncio.create_task(self._accounts.report_often(), name="report what the workers' time is spent on"),
        }

        try:
            done, _ = await asyncio.wait({*parts, self._watch.failure}, return_when=asyncio.FIRST_COMPLETED)
            endings: list[Ending] = [part.result() for part in done]  # raises an error of any of them
            ending = endings[0]
            if ending is Ending.RELEASED:
                if self._is_lasting:
                    self._launcher_timeout.shorten(_RELEASED_SECONDS)
                await wait_while_launcher_lives(orders, attending, self._watch.await_failed())
                await self._sequencing.close()
                await self._watch.close()
                await wait_while_launcher_lives(orders, attending, self._output.drain())
        except ServerTimeoutError:
            self._watch.note_signal(signal.SIGTERM)
            await self._watch.await_ended()
            raise
        finally:
            # Before the workers are killed: the agent must not report these ends as failures of the workers.
            await cancel_and_wait(parts)
            await orders.close()
            await self._probe_responder.close()
            await self._stack_reader.close()
            await self._sequencing.close()
            await self._watch.close()
            self._input.close()
            self._folder.remove()
            self._snapshots.remove()
            remove_orphans(os.environ)
            self._watchdog.end()
            self._master_ports.close()
        return ending

    @property
    def _is_lasting(self) -> bool:
        """Whether the job outlives its launcher."""
        return self._begin.server_timeout_seconds is not None

    def note_notice(self) -> None:
        """Report a stop notice: the job drains this host, or stops; without a launcher this host stops by itself."""
        self._watch.note_notice()
        self._launcher_timeout.stop()

    async def _await_signal(self, orders: OrderReader) -> Ending:
        """Pass the first signal on, and let the launcher end the job; end at the second, or long after the grace."""
        signalled = asyncio.Event()
        requests = StopRequests(os.getppid())
        loop = asyncio.get_running_loop()

        def end(code: int) -> None:
            orders.exit_code = code
            signalled.set()

        def answer(number: int) -> None:
            code = SIGNAL_OFFSET + number
            if not requests.note(code):
                return
            if requests.count > 1:
                end(code)
            elif self._is_joined and number == signal.SIGTERM:
                if self._watch.running():
                    self.note_notice()
                else:
                    end(TEMPORARY_FAILURE)
            else:
                orders.is_signalled = True
                self._watch.note_signal(number)
                self._launcher_timeout.stop()
                loop.call_later(self._begin.grace_seconds + self._begin.lease_seconds, end, code)

        loop.add_signal_handler(signal.SIGUSR1, self._watch.pass_on, signal.SIGUSR1)
        loop.add_signal_handler(signal.SIGUSR2, self.note_notice)
        # Handled though ignored (nohup): workers would inherit that.
        for number in filterfalse(has_foreign_handler, STOPPING):
            is_ignored = signal.getsignal(number) is signal.SIG_IGN and number != signal.SIGTERM
            if is_ignored:
                loop.add_signal_handler(number, lambda: None)
            else:
                loop.add_signal_handler(number, answer, number)
        await signalled.wait()
        return Ending.SIGNALLED

    async def _obey(self, orders: OrderReader) -> Ending:  # noqa: C901, PLR0912 - one case for each kind of order
        while True:
            match await orders.next():
                case Launch() as launch:
                    if self._is_lasting:
                        orders.outlast()
                    self._sequencing.expect(launch.assignment)
                    self._watch.launch(self._complete(launch))
                case Terminate() as terminate:
                    self._watch.terminate(terminate)
                case Input(data):
                    self._input.write(data)
                case Stop():
                    self._stop_workers()
                case PassOn(number):
                    self._watch.pass_on(number)
                case Hold(held):
                    self._launcher_timeout.hold(held=held)
                case Release():
                    return Ending.RELEASED
                case None:
                    # The machine goes down, say: what it has promised its workers holds.
                    if self._watch.signal:
                        await self._watch.await_ended()
                    return Ending.LAUNCHER_GONE
                case ListAddresses() | ProbePeers() as question:
                    self._probe_responder.answer(question)
                case AskStacks() as question:
                    self._stack_reader.answer(question)
                case GiveUp(worker, reason):
                    self._watch.note_stopped(self._watch.pids.get(worker, 0), reason)
                case Wait():
                    self._launcher_timeout.restart()
                case Begin() | Examine():
                    # These belong before the start.
                    pass

    def _make_timeout(self, begin: Begin) -> LauncherTimeout:
        if begin.server_timeout_seconds is None:
            return LauncherTimeout(begin.launcher_timeout_seconds)
        silence_seconds = begin.lease_seconds * _SILENCE_SHARE
        return ServerTimeout(begin.server_timeout_seconds, self._stop_workers, silence_seconds=silence_seconds)

    def _stop_workers(self) -> None:
        """Tell the workers that a stop notice has come."""
        name_stop_file(self._socket).touch()
        self._sequencing.stop()

    def _greet(self) -> None:
        """Tell a launcher what a former one may have been told: it may have ended since."""
        for number, master in self._master_ports.list():
            self._output.tell(Reserved(master, number))

    def _complete(self, launch: Launch) -> Launch:
        """With the port that is reserved for rank 0 of its round, if that is on this host; the launcher learns it."""
        if launch.round is None or launch.round.master is not None:
            return launch
        master = self._master_ports.reserve(launch.round.number)
        self._output.tell(Reserved(master, launch.round.number))
        return replace(launch, round=replace(launch.round, master=master))

    def _finds_world(self) -> bool:
        return self._begin.looks_for_world and self._master_ports.has_listener()

    async def _look_for_world(self) -> NoReturn:
        """Report once that rank 0 listens at the port of its round; then wait until cancelled."""
        pause_seconds = _FIRST_LOOK_SECONDS
        while self._begin.looks_for_world and not self._watch.has_world:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(_LAST_LOOK_SECONDS, pause_seconds * 1.1)
            if self._finds_world():
                self._watch.note_world()
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    async def _attend(self, orders: OrderReader) -> NoReturn:
        """Serve the workers' calls, and report to the server.

        Raises:
            LauncherTimeoutError, ServerTimeoutError: no report was acknowledged for too long.
        """
        # Until the first worker was launched; that order may never come.
        while not self._watch.changed.is_set():
            if not self._launcher_timeout.look():
                raise self._launcher_timeout.make_error(None)
            with contextlib.suppress(TimeoutError):  # then look at the clock again
                async with asyncio.timeout(self._begin.lease_seconds / _LOOKS_PER_LEASE):
                    await self._watch.changed.wait()
        await asyncio.to_thread(importlib.import_module, "hvdrun.agent.session")
        from hvdrun.agent.session import attend  # noqa: PLC0415 - gRPC's import would delay the workers

        link = None
        if self._is_lasting:
            await asyncio.to_thread(load_all, "hvdrun.agent", "hvdrun.network")
            link = LauncherLink(self._output, orders.put, self._greet)
        await attend(self._begin, self._socket, self._watch, self._launcher_timeout, self._sequencing, link=link)
        raise AssertionError("attend() ends by raising")

    def _warn(self, text: str) -> None:
        """Warn the user while workers run; later it does not matter."""
        if self._watch.running():
            self._output.tell(Alert(text))


async def wait_while_launcher_lives(
    orders: OrderReader, attending: asyncio.Future[NoReturn], waiting: Coroutine[Any, Any, None]
) -> None:
    """Wait for failed workers, or for the output to be read, unless the launcher goes or is silent for too long.

    Raises:
        Exception: what `waiting`, or reading the orders, raised.
    """
    parts: set[asyncio.Task[Any]] = {
        asyncio.create_task(waiting, name="wait for the workers or their output"),
        asyncio.create_task(orders.skip(), name="wait for the launcher's end"),
    }
    try:
        done, _ = await asyncio.wait(parts | {attending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(parts)
    for part in parts & done:
        part.result()


async def serve_pipes(orders_descriptor: int, output_descriptor: int) -> Ending:
    """Serve the launcher at the other end of these descriptors.

    Raises:
        LimitTooLowError, ProcHiddenError, LoopbackDownError: this host lacks what the agent needs.
    """
    refuse_scarcity("the agent")
    kind = os.fstat(orders_descriptor).st_mode
    # /dev/null and files have no events to wait for.
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return Ending.LAUNCHER_GONE
    reader = asyncio.StreamReader()
    pipe = os.fdopen(orders_descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    output = OutputForwarder()
    await output.open(output_descriptor)
    return await serve(OrderReader(reader, fall_silent), output)


def fall_silent() -> None:
    """Write nothing more to a launcher that is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


async def serve(
    orders: OrderReader,
    output: OutputForwarder,
    note_begin: Callable[[Begin], None] = lambda _: None,
    *,
    is_joined: bool = False,
) -> Ending:
    """Serve the launcher at the other end; see `Agent`.

    output: an open forwarder; the agent closes it when the job was begun.
    note_begin: is called when the job begins; until then the caller answers the signals of an agent that `is_joined`.
    """
    is_noticed = asyncio.Event()
    if not is_joined:
        answer_notice(is_noticed.set)
    output.tell(Hello(__version__))
    examiner = Examiner(output.tell)

    try:
        with report_failure(socket.gethostname(), output):
            begin = await prepare(orders, output, examiner)
        if isinstance(begin, Ending):
            return begin

        with contextlib.closing(output), report_failure(begin.host, output):
            note_begin(begin)
            if (missing := find_missing_cpus(os.environ, len(os.sched_getaffinity(0)))) is not None:
                output.tell(Alert(missing))
            environment = begin.environment
            if begin.inherits:
                environment = merge_environments(os.environb, environment)
            begin = replace(begin, environment=prepend_shim(environment))
            agent = Agent(begin, choose_folder(os.environ), output, is_joined=is_joined)
            if is_noticed.is_set():
                agent.note_notice()
            return await agent.run(orders)
    finally:
        await examiner.close()


@contextlib.contextmanager
def report_failure(host: str, output: OutputForwarder) -> Iterator[None]:
    """Report to the launcher that the agent lacks a resource, or an unexpected error of the agent."""
    try:
        yield
    except AgentResourceError as error:
        output.tell(AgentFailed(str(error)))
        raise
    except (RendezvousError, HvdrunError):
        raise
    except Exception as error:
        sentence = f"the agent on {host} failed: {type(error).__name__}: {error}"
        output.tell(AgentFailed(sentence, traceback.format_exc().rstrip()))
        raise


async def prepare(orders: OrderReader, output: OutputForwarder, examiner: Examiner) -> Begin | Ending:
    """Take part in connectivity checks until the job begins, or the launcher has gone, or has released the agent."""
    responder = ProbeResponder(output.tell)
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
                case ListAddresses() | ProbePeers() as question:
                    await responder.answer(question)
                case Examine() as question:
                    examiner.answer(question)
                case Release():
                    return Ending.RELEASED
                case _:
                    return Ending.LAUNCHER_GONE
    except TimeoutError:
        return Ending.LAUNCHER_GONE
    finally:
        await responder.close()
