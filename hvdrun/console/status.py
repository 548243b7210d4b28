"""A line at the end of what a terminal shows, redrawn in place, and gone before anything else is written."""

import os
from collections.abc import Callable

from hvdrun.console.writer import Writer

_ERASE = b"\r\x1b[K"
_USUAL_COLUMNS = 80


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
