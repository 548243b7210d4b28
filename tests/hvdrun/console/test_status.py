"""A line that is redrawn in place: on the screen it leaves nothing."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

from hvdrun.console.status import StatusLine
from hvdrun.console.writer import Writer
from tests.house.sources import ROOT
from tests.hvdrun.console.screens import Screen
from tests.waiting import LIMIT_SECONDS, wait_until


def test_each_drawing_replaces_the_one_before(terminal: Screen) -> None:
    writer = Writer()
    status = StatusLine(writer, terminal.writing)
    status.show(lambda _: "one")
    wait_until(lambda: not writer.is_behind)
    status.show(lambda _: "two")
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == "\r\x1b[Kone\r\x1b[Ktwo"


def test_it_is_erased_once(terminal: Screen) -> None:
    writer = Writer()
    status = StatusLine(writer, terminal.writing)
    status.erase()
    status.show(lambda _: "one")
    status.erase()
    status.erase()
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == "\r\x1b[Kone\r\x1b[K"


@pytest.mark.parametrize(("columns", "usable"), [(40, 39), (0, 79)])
def test_the_last_column_stays_free(terminal: Screen, columns: int, usable: int) -> None:
    fcntl.ioctl(terminal.writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    writer = Writer()
    StatusLine(writer, terminal.writing).show(str)
    writer.end(LIMIT_SECONDS)
    assert terminal.read() == f"\r\x1b[K{usable}"


def test_nothing_is_drawn_behind_what_a_paused_reader_has_not_taken(terminal: Screen) -> None:
    reading, writing = os.pipe()
    writer = Writer()
    writer.put(writing, b"x" * 1_000_000)
    StatusLine(writer, terminal.writing).show(lambda _: pytest.fail("drawn"))
    writer.end(0)
    os.close(reading)
    os.close(writing)


def test_nothing_is_drawn_from_the_background_of_a_terminal(terminal: Screen) -> None:
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
    command = [sys.executable, "-c", program]
    end = terminal.writing
    subprocess.run(command, stdin=end, stdout=end, stderr=end, start_new_session=True, check=True, cwd=ROOT)
    assert terminal.read() == "\r\x1b[Kfront"
