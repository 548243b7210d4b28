"""The status line of a terminal, the progress of a long start on this line, and notices of a start in a notebook."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from hvdrun.console.page import describe_seconds
from hvdrun.console.stdin import is_in_foreground
from hvdrun.console.writer import Writer
from hvdrun.spec.hosts import count_slots
from rendezvous.core.state import StartProgress

PATIENCE_SECONDS = 1.0  # a shorter start shows no progress
PERIOD_SECONDS = 0.25
_ERASE = b"\r\x1b[K"
_USUAL_COLUMNS = 80


def describe_start(progress: StartProgress, seconds: float) -> str:
    """The progress of a start in words, after so many seconds."""
    if progress.offered is not None:
        return f"waiting for hosts: {progress.offered} of {count_slots(progress.workers)}, {describe_seconds(seconds)}"
    return (
        f"hosts connected {progress.connected}/{progress.hosts}, "
        f"workers joined {progress.joined}/{progress.workers}, {describe_seconds(seconds)}"
    )


class StatusLine:
    """A line at the end of a terminal, redrawn in place, and erased before anything else is written.

    Args:
        writer: writes everything that the terminal shows.
        descriptor: the descriptor of the terminal.
        coloured: whether the terminal shows colours.
    """

    def __init__(self, writer: Writer, descriptor: int, *, coloured: bool = False) -> None:
        self._writer = writer
        self._descriptor = descriptor
        self._coloured = coloured
        self._is_shown = False

    def show(self, text: str) -> None:
        """Replace the line, cut where it would be longer than the terminal is wide.

        Nothing is drawn while output waits for the terminal, or while another program has the foreground.
        """
        if self._writer.is_behind or not is_in_foreground(self._descriptor):
            return
        # In the last column some terminals begin a new line, which the next erasure would miss.
        columns = (os.get_terminal_size(self._descriptor).columns or _USUAL_COLUMNS) - 1
        cut = text if len(text) <= columns else f"{text[: columns - 1]}…"
        line = f"\x1b[36m{cut}\x1b[0m" if self._coloured else cut
        self._writer.put(self._descriptor, _ERASE + line.encode())
        self._is_shown = True

    def erase(self) -> None:
        """Leave the line empty, and the cursor at its beginning."""
        if self._is_shown:
            self._is_shown = False
            self._writer.put(self._descriptor, _ERASE)


class StartLine:
    """Shows the progress of a long start until its end, or until `close`.

    Args:
        status: the line; None: there is no terminal, and this object does nothing.
        look: the progress of the start; None when it is over.
        limit_seconds: how long the progress is shown after the hosts are there, if no worker joins. The workers of a
            program that does not use the runtime never join.
        clock: the time in seconds.
    """

    def __init__(
        self,
        status: StatusLine | None,
        look: Callable[[], StartProgress | None],
        *,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = status
        self._look = look
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def open(self, tasks: asyncio.TaskGroup | asyncio.AbstractEventLoop, started: float) -> None:
        """Start to look; `started` is when the start of the job began, by the clock."""
        if self._status is not None:
            self._task = tasks.create_task(self._run(self._status, started), name="show the start")

    def close(self) -> None:
        """Stop, and erase the line; may be called again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._status is not None:
            self._status.erase()

    async def _run(self, status: StatusLine, started: float) -> None:
        await asyncio.sleep(started + PATIENCE_SECONDS - self._clock())
        waited_until = started
        while (progress := self._look()) is not None:
            now = self._clock()
            if progress.offered is not None:
                waited_until = now  # the limit counts from the end of the wait for hosts
            if now - waited_until > self._limit_seconds and not progress.joined:
                break
            status.show(f"hvdrun: {describe_start(progress, now - started)}")
            await asyncio.sleep(PERIOD_SECONDS)
        status.erase()


class StartNotice:
    """Prints that a long start has begun, and when it is over: in a notebook nothing can be redrawn.

    Args:
        say: prints a sentence; None: no person watches, and this object does nothing.
        count_ready: how many workers are ready.
        size: how many there will be.
        hosts: where, if it is known.
        clock: the time in seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None] | None,
        count_ready: Callable[[], int],
        size: int,
        hosts: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._count_ready = count_ready
        self._size = size
        self._workers = f"{size} worker{'' if size == 1 else 's'}"
        match hosts:
            case []:
                self._where = ""
            case [host]:
                self._where = f" on {host}"
            case _:
                self._where = f" on {len(hosts)} hosts"
        self._clock = clock
        self._started = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_announced = False

    def open(self, tasks: asyncio.TaskGroup | asyncio.AbstractEventLoop, started: float) -> None:
        """See `StartLine`."""
        self._started = started
        if self._say is not None:
            self._task = tasks.create_task(self._run(self._say), name="tell the start")

    def close(self) -> None:
        """Stop, and print the end of the start if its beginning was printed; may be called again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._tell_end()

    async def _run(self, say: Callable[[str], None]) -> None:
        await asyncio.sleep(self._started + PATIENCE_SECONDS - self._clock())
        while self._count_ready() < self._size:
            if not self._is_announced:
                self._is_announced = True
                say(f"starting {self._workers}{self._where} ...")
            await asyncio.sleep(PERIOD_SECONDS)
        self._tell_end()

    def _tell_end(self) -> None:
        if self._say is not None and self._is_announced and self._count_ready() >= self._size:
            self._is_announced = False
            self._say(f"{self._workers} ready after {describe_seconds(self._clock() - self._started)}")
