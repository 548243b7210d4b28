"""Refuses a backend that the workers' torch lacks, before any worker of this host runs the script.

The agent has no torch, so the Python that the command names is asked, once, and only where a backend was asked for:
a fork of the forkserver, which has imported torch already, or else that interpreter itself. What is no Python command
cannot be asked; its workers are refused by their own `init()`.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Protocol

from hvdrun.agent.sequencing import Streams
from hvdrun.agent.spawn import Spawned, Spawner, find_executable, mark_service
from hvdrun.errors import BackendNotAskedError, BackendRefusedError
from hvdrun.processes import python_command
from hvdrun.processes.child import OutputFile, kill_child, start_child
from hvdrun.processes.watchdog import Watchdog
from rendezvous.bootstrap import BACKEND, Backend
from rendezvous.core.messages import Launch
from rendezvous.wire.orders import Begin
from rendezvous.wire.processes import BACKENDS, read_answer

_VARIABLE = os.fsencode(BACKEND)
_ONE_THREAD = {b"OMP_NUM_THREADS": b"1"}
_OUTPUT_BYTES = 64 * 1024


class ForkingSpawner(Spawner, Protocol):
    """Starts workers, and modules of ours faster than a new interpreter does where that is possible."""

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: Streams
    ) -> int | None:
        """Fork a process that runs it: its pid; None where there is nothing to fork from."""


class CheckedSpawner:
    """Starts workers as another spawner does, once their interpreter was found to have the backend.

    Args:
        begin: what the agent knows of the job.
        spawner: starts the workers.
        watchdog: is told of the process that is asked.
        module: the program that is asked.
    """

    def __init__(self, begin: Begin, spawner: ForkingSpawner, watchdog: Watchdog, *, module: str = BACKENDS) -> None:
        self._begin = begin
        self._spawner = spawner
        self._watchdog = watchdog
        self._module = module
        self._wish = os.fsdecode(begin.environment.get(_VARIABLE, b""))
        self._asking: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """As the other spawner."""
        await self._spawner.prepare()

    async def spawn(self, launch: Launch) -> Spawned:
        """Start one worker; see `Spawner`.

        Raises:
            BackendRefusedError, BackendNotAskedError: no worker is started here.
        """
        if self._wish in set(Backend) - {Backend.GLOO}:  # every torch has gloo; a name that is none, init() refuses
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
                self._asking.add_done_callback(_take_notice)
            await asyncio.shield(self._asking)
        return await self._spawner.spawn(launch)

    async def close(self) -> None:
        """Ask no more; then as the other spawner."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._spawner.close()

    async def _ask(self) -> None:
        """Raises where the backend cannot be used."""
        begin = self._begin
        name = python_command.find_interpreter(begin.command)
        if name is None:
            return
        interpreter = find_executable(name, begin.directory, begin.environment)
        limit_seconds = begin.start_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                objection = await self._question(interpreter)
        except TimeoutError:
            reason = f"it did not answer within {limit_seconds:g} s"
            raise BackendNotAskedError(self._wish, interpreter, reason) from None
        if objection:
            raise BackendRefusedError(self._wish, interpreter, objection)

    async def _question(self, interpreter: str) -> str:
        """What the interpreter has against it; raises BackendNotAskedError where it does not say."""
        with contextlib.ExitStack() as ours:
            try:
                with contextlib.ExitStack() as theirs:
                    reader, writer = os.pipe()
                    ours.callback(os.close, reader)
                    theirs.callback(os.close, writer)
                    nothing = os.open(os.devnull, os.O_RDONLY)
                    theirs.callback(os.close, nothing)
                    errors = OutputFile()
                    ours.callback(errors.close)
                    pid = await self._start(interpreter, (nothing, writer, errors.fileno()))
                    ours.callback(self._watchdog.remove, pid)
                    ours.callback(kill_child, pid)
                self._watchdog.add(pid)
                objection = read_answer(await _read_all(reader))
            except OSError as error:
                raise BackendNotAskedError(self._wish, interpreter, error.strerror or str(error)) from error
            if objection is None:
                reason = errors.read_last_line() or "it ended without an answer"
                raise BackendNotAskedError(self._wish, interpreter, reason)
            return objection

    async def _start(self, interpreter: str, streams: Streams) -> int:
        begin = self._begin
        environment = {**begin.environment, **mark_service(begin), **_ONE_THREAD}
        pid = await self._spawner.fork_module(self._module, (self._wish,), environment, streams)
        if pid is not None:
            return pid
        command = [interpreter, "-P", "-m", self._module, self._wish]
        return start_child(command, streams, directory=begin.directory, environment=environment)


async def _read_all(descriptor: int) -> bytes:
    """The last of what comes from a pipe until its end; the pipe stays the caller's."""
    own = os.fdopen(os.dup(descriptor), "rb", buffering=0)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), own)
    try:
        said = b""
        while chunk := await reader.read(_OUTPUT_BYTES):
            said = (said + chunk)[-_OUTPUT_BYTES:]
        return said
    finally:
        transport.close()


def _take_notice(asking: asyncio.Task[None]) -> None:
    """The error is told to each worker that is not started; it may be that none waits any more."""
    if not asking.cancelled():
        asking.exception()
