"""The live line of a start: while one takes long, a person at a terminal sees how far it has come."""

import asyncio
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import StringIO

from hvdrun.console.page import describe_seconds
from hvdrun.console.writer import Writer
from hvdrun.spec.hosts import count_slots
from rendezvous.core.lifecycle import Phase
from rendezvous.core.state import State

PATIENCE_SECONDS = 1.0  # a shorter start needs no word
PERIOD_SECONDS = 0.25
_ERASE = b"\r\x1b[K"
_USUAL_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far a start has come: the hosts whose agent has reported, the workers that have joined, each of how many.

    offered: how many slots there are, while more are waited for; None when there are enough.
    """

    connected: int
    hosts: int
    joined: int
    workers: int
    offered: int | None = None

    def describe(self, seconds: float) -> str:
        """In words, for a start that has taken so long."""
        if self.offered is not None:
            return f"waiting for hosts: {self.offered} of {count_slots(self.workers)}, {describe_seconds(seconds)}"
        return (
            f"hosts connected {self.connected}/{self.hosts}, workers joined {self.joined}/{self.workers}, "
            f"{describe_seconds(seconds)}"
        )


def measure_start(state: State) -> StartProgress | None:
    """How far a job's start has come; None when it is over, or can never be complete."""
    if state.phase is not Phase.FORMING or state.generation is not None or state.ended:
        return None
    if state.policy.is_elastic and not state.placement:
        return StartProgress(0, 0, 0, state.policy.slots_to_start, sum(host.slots for host in state.offered))
    connected = sum(heard is not None for heard in state.last_heard.values())
    return StartProgress(connected, len(state.last_heard), state.waiting, len(state.placement))


class StatusLine:
    """The line at the end of one terminal.

    writer: what everything that reaches the terminal goes through.
    """

    def __init__(self, writer: Writer, descriptor: int) -> None:
        self._writer = writer
        self._descriptor = descriptor
        self._is_shown = False

    def show(self, render: Callable[[int], str]) -> None:
        """Draw the line in place of the former; `render` makes it, no longer than so many columns.

        Nothing is drawn behind what the terminal has not taken yet, nor while another program has its foreground.
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
    """Whether this process may draw there: behind a shell's `&` it would draw into what the user types."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # nobody's shell runs on this terminal, or not ours
        return True


class StartLine:
    """Shows the line from when a start has become long until its end, or until `close`.

    status: where it is shown; None for nowhere: then nothing is done at all.
    look: how far the start has come; None when it is over.
    limit_seconds: how long it is shown while nobody joins: plain programs never do.
    coloured: whether the terminal is to show colours.
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
        """Begin to look; `started` is when the start began, by the clock."""
        if self._status is not None:
            self._task = tasks.create_task(self._run(self._status, started), name="show the start")

    def close(self) -> None:
        """Look no further, and leave nothing on the terminal; may be called again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._status is not None:
            self._status.erase()

    async def _run(self, status: StatusLine, started: float) -> None:
        await asyncio.sleep(started + PATIENCE_SECONDS - self._clock())
        await asyncio.to_thread(importlib.import_module, "rich.console")
        while (progress := self._look()) is not None:
            seconds = self._clock() - started
            if seconds > self._limit_seconds and not progress.joined:
                break
            text = f"hvdrun: {progress.describe(seconds)}"
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
