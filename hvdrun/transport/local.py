"""The way to an agent on this machine: a child process and three pipes."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

from hvdrun.agent.folder import remove_orphans
from hvdrun.errors import LaunchError
from rendezvous import wire
from rendezvous.orders import Order, Telling

_CHUNK_BYTES = 256 * 1024
_ERROR_TAIL_BYTES = 16 * 1024
_CLOSE_SECONDS = 8.0  # more than an agent takes to clear away; after that it is killed, and its guardian does it


class LocalTransport:
    """Starts the agent with hvdrun's own interpreter, in a session of its own: a Ctrl-C is hvdrun's to hand on."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._process: asyncio.subprocess.Process | None = None
        self._errors = b""
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the agent; see `Transport`."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "hvdrun.agent",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise LaunchError(f"the agent on {self.host} could not be started: {error}") from error
        self._listening = asyncio.create_task(self._listen())

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(wire.encode_order(order))

    async def tellings(self) -> AsyncIterator[Telling]:
        """What the agent tells; see `Transport`."""
        frames = wire.FrameReader()
        if self._process is not None and self._process.stdout is not None:
            while chunk := await self._process.stdout.read(_CHUNK_BYTES):
                for data in frames.feed(chunk):
                    yield wire.decode_telling(data)

    async def wait(self) -> str:
        """Wait for the agent's end; see `Transport`."""
        if self._process is None or self._listening is None:
            return "it was never started"
        returncode = await self._process.wait()
        await self._listening
        how = f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"
        last = self._errors.decode(errors="replace").strip().rpartition("\n")[2]
        return f"its agent ended with {how}: {last}" if last else f"its agent ended with {how}"

    async def tunnel(self, port: int) -> int:
        """The host is this machine; see `Transport`."""
        return port

    async def abandon(self) -> None:
        """Kill the agent; its guardian clears away. See `Transport`."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        ended = asyncio.gather(self._process.wait(), self._discard_output())
        if not (await asyncio.wait({ended}, timeout=_CLOSE_SECONDS))[0]:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await ended
        if self._listening is not None:
            await self._listening
        if self._process.returncode:  # it may have been killed, and its guardian too
            remove_orphans(os.environ)

    async def _discard_output(self) -> None:
        """What nobody takes any more: asyncio knows a process as ended only when its pipes were read to the end."""
        if self._process is not None and self._process.stdout is not None:
            while await self._process.stdout.read(_CHUNK_BYTES):
                pass

    async def _listen(self) -> None:
        """Keep the end of what the agent itself has to say, for the sentence about its death."""
        if self._process is not None and self._process.stderr is not None:
            while chunk := await self._process.stderr.read(_ERROR_TAIL_BYTES):
                self._errors = (self._errors + chunk)[-_ERROR_TAIL_BYTES:]
