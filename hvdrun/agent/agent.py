"""The story of an agent: take orders, start workers at once, attend the rendezvous, and leave nothing behind.

Orders come on standard input, the workers' output goes to standard output; both belong to the launcher. The end of the
order channel without a Release means that the launcher is gone: all workers are killed at once. So they are when the
server has not acknowledged a report for the lease, since the server may then have counted this host as lost.

gRPC is imported when the first workers have been started: it takes a tenth of a second that they need not wait for.
"""

import asyncio
import importlib
import os
import shutil
import signal
import tempfile
from enum import Enum, auto
from pathlib import Path

from hvdrun.agent.fork_spawner import ForkSpawner
from hvdrun.agent.guard import Guard
from hvdrun.agent.input import InputFeed
from hvdrun.agent.lease import Lease
from hvdrun.agent.output import OutputForwarder
from hvdrun.agent.port import ReservedPort
from hvdrun.agent.processes import name_agent_origin
from hvdrun.agent.spawn import WorkerEnvironment
from hvdrun.agent.watch import Watch
from rendezvous import wire
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.model import Endpoint
from rendezvous.orders import Begin, Hold, Input, Order, Release, Remark, Reserved, Taken

_FOLDER_PATH_LIMIT = 90  # a Unix socket's path has 107 bytes at most
_CHUNK_BYTES = 64 * 1024


class Ending(Enum):
    """Why an agent ends."""

    RELEASED = auto()
    LAUNCHER_GONE = auto()
    LEASE_EXPIRED = auto()
    SIGNALLED = auto()


class Orders:
    """The launcher's orders, one after the other; None at their end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frames = wire.FrameReader()
        self._pending: list[Order] = []

    async def next(self) -> Order | None:
        """The next order."""
        while not self._pending:
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                return None
            self._pending += [wire.decode_order(data) for data in self._frames.feed(chunk)]
        return self._pending.pop(0)


class Agent:
    """Serves one job on one host, from its Begin to its end."""

    def __init__(self, begin: Begin, folder: Path) -> None:
        self._begin = begin
        self._folder = folder
        self._socket = folder / "agent.sock"
        self._guard = Guard(name_agent_origin(begin.job, begin.host), folder)
        self._output = OutputForwarder()
        self._port = ReservedPort() if begin.master is None else None
        self._master = begin.master or Endpoint(begin.address, self._port.number if self._port else 0)
        environment = WorkerEnvironment(begin, self._socket, self._master)
        spawner = ForkSpawner(begin, environment, lambda text: self._output.tell(Remark(text)))
        self._input = InputFeed(lambda: self._output.tell(Taken()))
        self._lease = Lease(begin.lease_seconds)
        self._watch = Watch(begin.job, begin.host, spawner, self._output, feed=self._input, guard=self._guard)

    async def run(self, orders: Orders, output: int) -> Ending:
        """Carry out orders until one of the endings; then clear everything away."""
        await self._output.open(output)
        if self._port is not None:
            self._output.tell(Reserved(self._master))
        self._watch.open()
        obeying = asyncio.create_task(self._obey(orders))
        parts = {obeying, asyncio.create_task(self._attend()), asyncio.create_task(_await_signal())}
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            ending = done.pop().result()
            await self._watch.close()
            if ending is Ending.RELEASED:
                await self._flush(orders)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self._watch.close()
            self._input.close()
            self._guard.dismiss()
            if self._port is not None:
                self._port.close()
        return ending

    async def _obey(self, orders: Orders) -> Ending:
        while True:
            match await orders.next():
                case Launch() as launch:
                    self._watch.launch(launch)
                case Terminate() as terminate:
                    self._watch.terminate(terminate)
                case Input(data):
                    self._input.write(data)
                case Hold(held):
                    self._lease.hold(held=held)
                case Release():
                    return Ending.RELEASED
                case None:
                    return Ending.LAUNCHER_GONE
                case Begin():
                    pass  # comes once; a repeated one changes nothing

    async def _attend(self) -> Ending:
        """Serve the workers' calls and report to the server, until the lease has expired."""
        await self._watch.changed.wait()
        await asyncio.to_thread(importlib.import_module, "hvdrun.agent.attendance")
        from hvdrun.agent.attendance import attend  # noqa: PLC0415 - see the module's docstring

        await attend(self._begin, self._socket, self._watch, self._lease)
        return Ending.LEASE_EXPIRED

    async def _flush(self, orders: Orders) -> None:
        """Let the launcher take what output is left, for as long as it is there."""
        flushing = asyncio.create_task(self._output.close())
        gone = asyncio.create_task(orders.next())
        await asyncio.wait({flushing, gone}, return_when=asyncio.FIRST_COMPLETED)
        flushing.cancel()
        gone.cancel()
        await asyncio.gather(flushing, gone, return_exceptions=True)


async def serve(orders_descriptor: int, output_descriptor: int) -> Ending:
    """Be the agent that the launcher at the other end of these descriptors wants."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(orders_descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    orders = Orders(reader)
    begin = await orders.next()
    if not isinstance(begin, Begin):
        return Ending.LAUNCHER_GONE
    folder = make_folder()
    try:
        return await Agent(begin, folder).run(orders, output_descriptor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_folder() -> Path:
    """A folder that only this user can enter, with a path short enough for a Unix socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="hvdrun-"))
    if len(os.fsencode(folder)) > _FOLDER_PATH_LIMIT:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="hvdrun-", dir="/tmp"))
    return folder


async def _await_signal() -> Ending:
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    await signalled.wait()
    return Ending.SIGNALLED
