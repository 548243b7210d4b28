"""The status line of a terminal, and the progress of a long start on it."""

import asyncio
import importlib
import os
import time
from collections.abc import Callable
from functools import partial
from io import StringIO

from hvdrun.console.page import describe_seconds
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

    writer: writes everything that the terminal shows.
    """

    def __init__(self, writer: Writer, descriptor: int) -> None:
        self._writer = writer
        self._descriptor = descriptor
        self._is_shown = False

    def show(self, render: Callable[[int], str]) -> None:
        """Replace the line; `render` takes the width of the terminal.

        Nothing is drawn while output waits for the terminal, or while another program has the foreground.
        """
        if self._writer.is_behind or not _has_foreground(self._descriptor):
            return
        columns = os.get_terminal_size(self._descriptor).columns or _USUAL_COLUMNS
        # In the last column some terminals begin a new line, which the next erasure would miss.
        self._writer.put(self._descriptor, _ERASE + render(columns - 1).encode())
        self._is_shown = True

    def erase(self) -> None:
        """Leave the line empty, and the cursor at its beginning."""
        if self._is_shown:
            self._is_shown = False
            self._writer.put(self._descriptor, _ERASE)


def _has_foreground(descriptor: int) -> bool:
    """This process may draw there; after `&` in a shell it would draw into what the user types."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # this terminal is not the controlling terminal of this process
        return True


class StartLine:
    """Shows the progress of a long start until its end, or until `close`.

    status: the line; None for none: then this does nothing.
    look: the progress of the start; None when it is over.
    limit_seconds: how long it is shown, once the hosts are there, while no worker joins: plain programs never do.
    coloured: whether the terminal shows colours.
    """

    def __init__(
        self,
        status: StatusLine | None,
        look: Callable[[], StartProgress | None],
        *,
        limit_seconds: float,
        coloured: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = status
        self._look = look
        self._limit_seconds = limit_seconds
        self._coloured = coloured
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
        await asyncio.to_thread(importlib.import_module, "rich.console")
        waited_until = started
        while (progress := self._look()) is not None:
            now = self._clock()
            if progress.offered is not None:
                waited_until = now
            if now - waited_until > self._limit_seconds and not progress.joined:
                break
            text = f"hvdrun: {describe_start(progress, now - started)}"
            status.show(partial(render_status, text, coloured=self._coloured))
            await asyncio.sleep(PERIOD_SECONDS)
        status.erase()


def render_status(text: str, columns: int, *, coloured: bool) -> str:
    """A text in one line, cut where it would be longer than so many columns; it ends without a newline."""
    from rich.console import Console  # noqa: PLC0415 - a short start does not need rich
    from rich.text import Text  # noqa: PLC0415 - the same

    buffer = StringIO()
    console = Console(
        file=buffer,
        force_terminal=True,
        color_system="standard" if coloured else None,
        no_color=False,
        highlight=False,
        emoji=False,
        width=columns,
    )
    console.print(Text(text, style="cyan" if coloured else ""), no_wrap=True, overflow="ellipsis", end="")
    return buffer.getvalue()
