"""A child process with three pipes, which is an agent or leads to one."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Self

_CHUNK_BYTES = 256 * 1024
_ERROR_TAIL_BYTES = 16 * 1024


class Child:
    """The process, from its start to its end; it leads a session of its own, since a Ctrl-C is hvdrun's to hand on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.errors = b""  # the end of its standard error
        self.process = process
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Self:
        """Start it in the root folder; without an environment it gets this process's own.

        Raises:
            OSError: it cannot be started.
        """
        return cls(
            await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                env=environment,
            )
        )

    def write(self, data: bytes) -> None:
        """Send bytes without waiting; after its end they are lost."""
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(data)

    async def read(self) -> bytes:
        """The next bytes of its output; empty at the end."""
        return b"" if self.process.stdout is None else await self.process.stdout.read(_CHUNK_BYTES)

    async def wait(self) -> int:
        """Wait until it has ended and its errors have come; the exit code, negative for a signal."""
        returncode = await self.process.wait()
        await self._listening
        return returncode

    def signal(self, number: Signals, *, group: bool) -> None:
        """Signal it; with `group` also those that it has started in its own process group."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if group:
                    os.killpg(self.process.pid, number)
                else:
                    self.process.send_signal(number)

    async def close(self, limits: Sequence[tuple[float, Signals]], *, group: bool) -> None:
        """End its input and wait for its end; after each limit, in seconds, it gets the next signal."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        ended = asyncio.gather(self.process.wait(), self._discard_output())
        for seconds, number in limits:
            if (await asyncio.wait({ended}, timeout=seconds))[0]:
                break
            self.signal(number, group=group)
        await ended
        await self._listening

    async def _discard_output(self) -> None:
        """What nobody takes any more: asyncio knows a process as ended only when its pipes were read to the end."""
        while await self.read():
            pass

    async def _listen(self) -> None:
        """Keep the end of what it has to say, for the sentence about its end."""
        if self.process.stderr is not None:
            while chunk := await self.process.stderr.read(_ERROR_TAIL_BYTES):
                self.errors = (self.errors + chunk)[-_ERROR_TAIL_BYTES:]


def describe_end(returncode: int) -> str:
    """How a process has ended, for a sentence."""
    return f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"
