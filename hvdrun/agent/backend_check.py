"""Refuses a backend that the workers' torch lacks, before any worker of this host runs the script.

The agent has no torch. So it asks the Python that the command names, once, and only where the user names a backend: a
fork of the forkserver, which has imported torch already, or else that interpreter. A command that is not a Python
command cannot be asked; the `init()` of its workers refuses the backend.
"""

import asyncio
import os
from functools import partial
from typing import Protocol

from hvdrun.agent.spawn import ModuleForker, Spawned, Spawner, find_executable, make_service_environment
from hvdrun.errors import BackendNotAskedError, BackendRefusedError
from hvdrun.processes import python_command
from hvdrun.processes.background import cancel_and_wait, retrieve
from hvdrun.processes.child import Child, StandardStreams, start_child
from hvdrun.processes.watchdog import Watchdog
from rendezvous.bootstrap import BACKEND, Backend
from rendezvous.core.messages import Launch
from rendezvous.wire.orders import Begin
from rendezvous.wire.processes import BACKENDS, read_answer

_VARIABLE = os.fsencode(BACKEND)
_OUTPUT_BYTES = 64 * 1024


class ForkingSpawner(Spawner, ModuleForker, Protocol):
    """Starts workers and modules."""


class CheckedSpawner:
    """Starts workers with another spawner, once their interpreter has confirmed the backend.

    Args:
        begin: the job, as the launcher has sent it.
        spawner: starts the workers.
        watchdog: kills the process that answers, after the agent was killed.
        module: the program that answers.
    """

    def __init__(self, begin: Begin, spawner: ForkingSpawner, watchdog: Watchdog, *, module: str = BACKENDS) -> None:
        self._begin = begin
        self._spawner = spawner
        self._watchdog = watchdog
        self._module = module
        self._wish = os.fsdecode(begin.environment.get(_VARIABLE, b""))
        self._asking: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """See `Spawner`."""
        await self._spawner.prepare()

    async def spawn(self, launch: Launch) -> Spawned:
        """Start one worker; see `Spawner`.

        Raises:
            BackendRefusedError, BackendNotAskedError: no worker is started here.
        """
        # Every torch has gloo; `init()` refuses an unknown name.
        if self._wish in set(Backend) - {Backend.GLOO}:
            if self._asking is None:
                self._asking = asyncio.create_task(self._check(), name="ask the workers' torch")
                self._asking.add_done_callback(retrieve)
            await asyncio.shield(self._asking)
        return await self._spawner.spawn(launch)

    async def close(self) -> None:
        """Stop asking, and close the other spawner."""
        if self._asking is not None:
            await cancel_and_wait((self._asking,))
        await self._spawner.close()

    async def _check(self) -> None:
        """Raise an error where the backend cannot be used."""
        begin = self._begin
        name = python_command.find_interpreter(begin.command)
        if name is None:
            return

        interpreter = find_executable(name, begin.directory, begin.environment)
        limit_seconds = begin.start_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                objection = await self._ask(interpreter)
        except TimeoutError:
            reason = f"it did not answer within {limit_seconds:g} s"
            raise BackendNotAskedError(self._wish, interpreter, reason) from None
        except OSError as error:
            raise BackendNotAskedError(self._wish, interpreter, error.strerror or str(error)) from error

        if objection:
            raise BackendRefusedError(self._wish, interpreter, objection)

    async def _ask(self, interpreter: str) -> str:
        """The interpreter's objection to the backend; "" where it has none.

        Raises:
            BackendNotAskedError: it gives no answer.
            OSError: it cannot be started.
        """
        child = await Child.start(partial(self._start, interpreter))
        self._watchdog.add(child.pid)
        try:
            objection = read_answer(await _read_end(await child.open_reader()))
            if objection is None:
                reason = child.read_last_line() or "it ended without an answer"
                raise BackendNotAskedError(self._wish, interpreter, reason)
            return objection
        finally:
            child.kill()
            self._watchdog.remove(child.pid)
            child.close()

    async def _start(self, interpreter: str, streams: StandardStreams) -> int:
        begin = self._begin
        environment = make_service_environment(begin)
        pid = await self._spawner.fork_module(self._module, (self._wish,), environment, streams)
        if pid is not None:
            return pid
        command = [interpreter, "-P", "-m", self._module, self._wish]
        return start_child(command, streams, directory=begin.directory, environment=environment)


async def _read_end(reader: asyncio.StreamReader) -> bytes:
    """The end of all that comes until the end of file."""
    end = b""
    while chunk := await reader.read(_OUTPUT_BYTES):
        end = (end + chunk)[-_OUTPUT_BYTES:]
    return end
