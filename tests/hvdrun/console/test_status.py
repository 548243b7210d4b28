"""A line that is redrawn in place: on the screen it leaves nothing."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hvdrun.console.status import StatusLine
from hvdrun.console.writer import Writer

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 10.0


class Terminal:
    """A terminal, and what it was given to show."""

    def __init__(self) -> None:
        reading, self.writing = pty.openpty()
        self._reading = os.fdopen(reading, "rb", buffering=0)
        self._writing = os.fdopen(self.writing, "wb", buffering=0)

    def read(self) -> bytes:
        """Everything; nothing more can be written."""
        self._writing.close()
        chunks = []
        with suppress(OSError):  # its end
            while chunk := self._reading.read(1000):
                chunks.append(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Give both ends back."""
        self._writing.close()
        self._reading.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def settle(writer: Writer) -> None:
    while writer.is_behind:
        os.sched_yield()


def test_each_drawing_replaces_the_one_before(terminal: Terminal) -> None:
    writer = Writer()
    status = StatusLine(writer, terminal.writing)
    status.show(lambda _: "one")
    settle(writer)
    status.show(lambda _: "two")
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == b"\r\x1b[Kone\r\x1b[Ktwo"


def test_it_is_erased_once(terminal: Terminal) -> None:
    writer = Writer()
    status = StatusLine(writer, terminal.writing)
    status.erase()
    status.show(lambda _: "one")
    status.erase()
    status.erase()
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == b"\r\x1b[Kone\r\x1b[K"


@pytest.mark.parametrize(("columns", "usable"), [(40, 39), (0, 79)])
def test_the_last_column_stays_free(terminal: Terminal, columns: int, usable: int) -> None:
    fcntl.ioctl(terminal.writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    writer = Writer()
    StatusLine(writer, terminal.writing).show(str)
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == b"\r\x1b[K%d" % usable


def test_nothing_is_drawn_behind_what_a_paused_reader_has_not_taken(terminal: Terminal) -> None:
    reading, writing = os.pipe()
    writer = Writer()
    writer.put(writing, b"x" * 1_000_000)
    StatusLine(writer, terminal.writing).show(lambda _: pytest.fail("drawn"))
    writer.end(0)
    os.close(reading)
    os.close(writing)


def test_nothing_is_drawn_from_the_background_of_a_terminal(terminal: Terminal) -> None:
    program = """if True:
        import fcntl, os, sys, termios
        from hvdrun.console.status import StatusLine
        from hvdrun.console.writer import Writer
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        writer = Writer()
        StatusLine(writer, 2).show(lambda _: "front")
        writer.end(10)
        os.setpgid(0, 0)
        writer = Writer()
        StatusLine(writer, 2).show(lambda _: "behind")
        writer.end(10)
    """
    ends = terminal.writing
    subprocess.run(
        [sys.executable, "-c", program],
        stdin=ends,
        stdout=ends,
        stderr=ends,
        start_new_session=True,
        check=True,
        cwd=ROOT,
        timeout=30,
    )
    assert terminal.read() == b"\r\x1b[Kfront"
