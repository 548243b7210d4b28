"""What hvdrun itself says: where, when, and in colour only where a person looks."""

import asyncio
import fcntl
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hvdrun.console import Console, Page
from rendezvous.orders import OutputStream

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 10.0
PAGE = Page(rank=0, host="a", returncode=3)


class Screen:
    """Two descriptors for a console to write to, and what was written there."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading = reading
        self.writing = writing
        self.descriptors = dict.fromkeys(OutputStream, writing)

    def read(self) -> str:
        """Everything so far."""
        return os.read(self.reading, 100_000).decode()


@pytest.fixture
def pipe() -> Iterator[Screen]:
    reading, writing = os.pipe()
    yield Screen(reading, writing)
    os.close(reading)
    os.close(writing)


@pytest.fixture
def terminal() -> Iterator[Screen]:
    reading, writing = pty.openpty()
    yield Screen(reading, writing)
    os.close(reading)
    os.close(writing)


def make_console(screen: Screen, environment: Mapping[str, str] = os.environ, *, verbose: bool = False) -> Console:
    return Console(verbose=verbose, marks_hosts=False, descriptors=screen.descriptors, environment=environment)


def test_a_notice_is_one_marked_line(pipe: Screen) -> None:
    console = make_console(pipe)
    console.notice("two\nlines \udcff")
    assert console.end(LIMIT_SECONDS)
    assert pipe.read() == "hvdrun: two lines \\udcff\n"


@pytest.mark.parametrize(("verbose", "expected"), [(True, "hvdrun: detail\nhvdrun: end\n"), (False, "hvdrun: end\n")])
def test_details_are_for_those_who_ask(pipe: Screen, verbose: bool, expected: str) -> None:  # noqa: FBT001 - a parameter
    console = make_console(pipe, verbose=verbose)
    console.verbose("detail")
    console.notice("end")
    console.end(LIMIT_SECONDS)
    assert pipe.read() == expected


def test_output_notices_and_page_come_in_the_order_in_which_they_were_said(pipe: Screen) -> None:
    async def show() -> None:
        console = make_console(pipe)
        await console.output.write(0, "a", OutputStream.STDOUT, b"one\ntwo")
        console.notice("between")
        console.output.finish(0, "a")
        console.page(PAGE)
        await console.output.close(LIMIT_SECONDS)

    asyncio.run(show())
    assert pipe.read() == "[0] one\nhvdrun: between\n[0] two\nhvdrun: rank 0 on a failed first: exit code 3\n"


def test_what_is_said_after_the_end_is_still_written(pipe: Screen) -> None:
    console = make_console(pipe)
    console.end(LIMIT_SECONDS)
    console.page(PAGE)
    assert pipe.read().startswith("hvdrun: rank 0")


def test_what_is_said_after_the_end_never_waits(pipe: Screen) -> None:
    console = make_console(pipe)
    console.end(LIMIT_SECONDS)
    os.write(pipe.writing, b"x" * fcntl.fcntl(pipe.writing, fcntl.F_GETPIPE_SZ))
    console.notice("into a full pipe")


def test_a_reader_that_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    console = make_console(Screen(reading, writing))
    console.notice("x")
    assert not console.end(LIMIT_SECONDS)
    console.page(PAGE)
    os.close(writing)


def test_a_terminal_gets_colours(terminal: Screen) -> None:
    console = make_console(terminal, {"TERM": "xterm"})
    console.page(PAGE)
    console.end(LIMIT_SECONDS)
    assert terminal.read().startswith("\x1b[1;31mhvdrun: rank 0")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours_gets_none(terminal: Screen, environment: dict[str, str]) -> None:
    console = make_console(terminal, environment)
    console.page(PAGE)
    console.end(LIMIT_SECONDS)
    assert "\x1b" not in terminal.read()


def test_a_pipe_gets_no_colours(pipe: Screen) -> None:
    console = make_console(pipe, {"TERM": "xterm", "FORCE_COLOR": "1"})
    console.page(PAGE)
    console.end(LIMIT_SECONDS)
    assert "\x1b" not in pipe.read()


def test_a_notice_on_a_terminal_erases_a_workers_progress_bar(terminal: Screen) -> None:
    async def show() -> None:
        console = make_console(terminal)
        await console.output.write(0, "a", OutputStream.STDERR, b"50%\rx")
        console.notice("stop")
        await console.output.close(LIMIT_SECONDS)

    asyncio.run(show())
    assert terminal.read() == "[0] 50%\r\x1b[Khvdrun: stop\r\n"


def test_a_console_that_shows_no_colours_does_not_import_rich() -> None:
    program = (
        "import sys; from hvdrun.console import Console, Page; console = Console(verbose=True, marks_hosts=False); "
        "console.page(Page(rank=0)); console.end(5); print('rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT, timeout=30)
    assert result.stdout == b"False\n"
