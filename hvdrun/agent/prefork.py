"""The agent's side of the forkserver: starts it, asks it for workers, and reports why it cannot be used.

The forkserver runs in the job's interpreter and environment. It ends with its socket, and so with the agent. Whenever
it cannot be used (the interpreter lacks `worker_runtime`, an import starts threads, it dies at its start), workers are
executed instead.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from hvdrun.processes.background import cancel_and_wait, start_task
from hvdrun.processes.child import OutputFile, StandardStreams, kill_child, start_child
from rendezvous.errors import WireError
from rendezvous.wire.codec import FrameReader
from rendezvous.wire.processes import Forked, ForkRequest, Ready, decode, encode

_SEARCH = b"PYTHONPATH"
_ENTRANCE = os.fsencode(Path(__file__).resolve().parent / "entrance")  # see sitecustomize.py there
_FORKSERVER = "worker_runtime.startup.forkserver"
_CHUNK_BYTES = 64 * 1024
_PROGRAM_WORDS = 2  # of the command, which name the program: the script, or -m and the module


def make_command(command: tuple[str, ...], descriptor: int, modules: tuple[str, ...]) -> list[str]:
    """The command of the forkserver for workers with this command.

    descriptor: the descriptor of its socket. modules: what it imports.
    """
    interpreter, *words = command[: 1 + _PROGRAM_WORDS]
    return [interpreter, "-m", _FORKSERVER, str(descriptor), json.dumps(words), json.dumps(modules)]


def make_environment(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment of a forkserver: this one, with the folder of the entrance first in PYTHONPATH."""
    search = os.pathsep.encode().join(filter(None, [_ENTRANCE, environment.get(_SEARCH)]))
    return {**environment, _SEARCH: search}


class ForkserverError(Exception):
    """The forkserver cannot fork, for this reason; the worker is executed instead."""


class Forkserver:
    """One forkserver process; belongs to one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[int]] = {}
        self._numbers = count(1)  # of requests
        self._sending = asyncio.Lock()
        self._socket: socket.socket | None = None
        self._errors: OutputFile | None = None
        self._reading: asyncio.Task[None] | None = None
        self._fault = ""  # why the agent has killed it; "" where it has not
        self.pid = 0

    def open(
        self,
        executable: str,
        command: tuple[str, ...],
        directory: str,
        environment: Mapping[bytes, bytes],
        modules: tuple[str, ...],
    ) -> None:
        """Start it; `executable` is the file of the command's interpreter.

        Raises:
            OSError: it cannot be started.
        """
        try:
            with contextlib.ExitStack() as stack:
                self._socket, theirs = socket.socketpair()
                stack.callback(theirs.close)
                self._socket.setblocking(False)  # noqa: FBT003 - socket's signature
                self._errors = OutputFile()
                output = stack.enter_context(contextlib.closing(OutputFile()))
                nothing = stack.enter_context(open(os.devnull, "rb"))  # noqa: PTH123 - a descriptor is wanted
                self.pid = start_child(
                    make_command(command, theirs.fileno(), modules),
                    (nothing.fileno(), output.fileno(), self._errors.fileno()),
                    directory=directory,
                    environment=make_environment(environment),
                    executable=executable,
                    descriptors=(theirs.fileno(),),
                )
        except OSError:
            self._release()
            raise

        self._reading = start_task(self._read(self._socket), "read the forkserver's answers")

    async def wait_ready(self) -> str:
        """Wait until it can fork; returns the reason where it cannot, else ""."""
        return await asyncio.shield(self._ready)

    @property
    def was_ready(self) -> bool:
        """Whether the forkserver could fork, at least before it ended."""
        return self._ready.done() and self._ready.result() == ""

    async def fork(
        self,
        request: ForkRequest,
        streams: StandardStreams,
        prepare: Callable[[int], None] | None = None,
        memory: int | None = None,
    ) -> int:
        """Fork a worker, and let it run; returns its pid.

        Args:
            request: the worker's program, environment and working directory.
            streams: its standard streams; the caller keeps these descriptors.
            prepare: gets the pid before the worker runs any code; where it raises, the worker runs none.
            memory: the descriptor of its memory of snapshots.

        Raises:
            ForkserverError: it cannot; no worker runs.
        """
        objection = await self.wait_ready()
        if objection:
            raise ForkserverError(objection)

        request = replace(request, number=next(self._numbers))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[request.number] = answer
        gate, opener = os.pipe()

        try:
            async with self._sending:
                await self._send(encode(request), (*streams, gate, *(() if memory is None else (memory,))))
            pid = await answer
            if prepare is not None:
                prepare(pid)
            with contextlib.suppress(BrokenPipeError):  # it was killed meanwhile
                os.write(opener, b"!")
        except OSError as error:
            raise ForkserverError(self._describe_end()) from error
        finally:
            os.close(gate)
            os.close(opener)
            del self._answers[request.number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieved, also where the request could not be sent
        return pid

    def kill(self, fault: str) -> None:
        """SIGKILL it, if it lives; its workers are executed for this reason."""
        if kill_child(self.pid):
            self._fault = fault

    async def close(self) -> None:
        """Close its socket, with which it ends; a caller that waits for it gets an error."""
        if self._reading is not None:
            await cancel_and_wait((self._reading,))
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_RDWR)
            async with self._sending:  # a caller that sends gets its error before the descriptor is closed
                self._release()

    def _release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    async def _send(self, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Send a request, and the descriptors with its first bytes."""
        if self._socket is None:
            raise BrokenPipeError
        while True:
            try:
                sent = socket.send_fds(self._socket, [data], descriptors)
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)  # the forkserver is at most a few requests behind
        await asyncio.get_running_loop().sock_sendall(self._socket, data[sent:])

    async def _read(self, connected: socket.socket) -> None:
        """Receive its messages until its end; then raise an error in each caller that waits for one."""
        frames = FrameReader()
        try:
            while chunk := await asyncio.get_running_loop().sock_recv(connected, _CHUNK_BYTES):
                for data in frames.feed(chunk):
                    match decode(data):
                        case Ready(objection) if not self._ready.done():
                            self._ready.set_result(objection)
                        case Forked(number, pid):
                            answer = self._answers.get(number)
                            if answer is not None and not answer.done():  # its caller may be cancelled just now
                                answer.set_result(pid)
        except (OSError, WireError, ValueError, KeyError, TypeError):
            # The forkserver died within a message, or runs another program: the same as its end.
            pass
        finally:
            if not self._ready.done():
                self._ready.set_result(self._describe_end())
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ForkserverError(self._describe_end()))

    def _describe_end(self) -> str:
        """Half a sentence, with the last line that it wrote."""
        if self._fault:
            return self._fault
        if self._errors is None:
            return "the forkserver ended"
        last = self._errors.read_last_line()
        return f"the forkserver ended: {last}" if last else "the forkserver ended"
