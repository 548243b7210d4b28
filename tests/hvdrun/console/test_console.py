"""What hvdrun itself says: where, when, and in colour only where a person looks."""

import asyncio
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.console import Console, Marks, Page
from hvdrun.spec.log_format import LogFormat
from rendezvous.core.messages import Level
from rendezvous.core.state import StartProgress
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.console.screens import Screen, at
from tests.waiting import LIMIT_SECONDS, happen, in_loop

PAGE = Page(rank=0, worker=at(0), returncode=3)


def make_console(
    screen: Screen,
    environment: Mapping[str, str] = os.environ,
    *,
    level: Level = Level.INFO,
    marks: Marks = Marks(),  # noqa: B008 - an immutable value may be shared
    log_format: LogFormat = LogFormat.TEXT,
) -> Console:
    return Console(
        level=level,
        marks=marks,
        job="a1b2",
        log_format=log_format,
        descriptors=screen.descriptors,
        environment=environment,
    )


def test_a_notice_is_one_marked_line(pipe: Screen) -> None:
    console = make_console(pipe)
    console.notice("two\nlines \udcff")
    assert console.end(LIMIT_SECONDS)
    assert pipe.read() == "hvdrun: two lines \\udcff\n"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Level.DEBUG, ["detail", "news", "loss"]),
        (Level.INFO, ["news", "loss"]),
        (Level.WARNING, ["loss"]),
        (Level.ERROR, []),
    ],
)
def test_sentences_below_the_level_are_not_printed_and_the_page_is(
    pipe: Screen, level: Level, expected: list[str]
) -> None:
    console = make_console(pipe, level=level)
    console.verbose("detail")
    console.notice("news")
    console.notice("loss", Level.WARNING)
    console.page(PAGE)
    console.end(LIMIT_SECONDS)
    failed = "rank 0 on a (slot 0) failed first: exit code 3"
    assert pipe.read() == "".join(f"hvdrun: {text}\n" for text in [*expected, failed])


def test_the_log_file_has_each_sentence_and_the_console_prints_as_before(pipe: Screen, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of a job before\n")
    console = make_console(pipe, log_format=LogFormat.JSON)
    console.keep_log(tmp_path / "log")
    console.verbose("detail")
    console.notice("two\nlines", Level.WARNING, "b")
    console.page(replace(PAGE, last_lines=("words",)))
    assert not console.report("no more")
    console.end(LIMIT_SECONDS)
    assert pipe.read().startswith("hvdrun: two lines\nhvdrun: rank 0 on a (slot 0) failed first: exit code 3\n")
    before, *records = (tmp_path / "log").read_text().splitlines()
    assert before == "of a job before"
    parts = ("level", "job", "host", "message", "details")
    assert [tuple(json.loads(record).get(part) for part in parts) for record in records] == [
        ("warning", "a1b2", "b", "two lines", None),
        ("error", "a1b2", "a", "rank 0 on a (slot 0) failed first: exit code 3", ["It wrote last:", "| words"]),
        ("error", "a1b2", socket.gethostname(), "no more", None),
    ]


def test_without_a_log_file_json_records_replace_the_lines_of_the_console(pipe: Screen) -> None:
    console = make_console(pipe, marks=Marks(times=True), log_format=LogFormat.JSON)
    console.notice("x")
    assert console.report("no more", "detail")
    console.end(LIMIT_SECONDS)
    assert [json.loads(line)["message"] for line in pipe.read().splitlines()] == ["x", "no more"]


@in_loop
async def test_a_log_on_a_full_disk_is_reported_once(pipe: Screen) -> None:
    console = make_console(pipe)
    console.keep_log(Path("/dev/full"))
    console.watch(Mock(), Mock())  # reports what cannot be written
    for text in ("one", "two"):
        console.notice(text)
    await happen(lambda: console._log._has_failed, "the failure is known")
    console.notice("three")
    console._log.end(0)  # it would be tried for as long as it may
    console.end(LIMIT_SECONDS)
    told = "hvdrun: '/dev/full' cannot be written, and lacks what hvdrun says meanwhile: No space left on device"
    assert pipe.read().splitlines() == ["hvdrun: one", "hvdrun: two", told, "hvdrun: three"]


@in_loop
async def test_output_notices_and_page_are_written_in_the_order_of_the_calls(pipe: Screen) -> None:
    console = make_console(pipe)
    await console.output.write(at(0), 0, OutputStream.STDOUT, b"one\ntwo")
    console.notice("between")
    console.output.finish(at(0))
    console.page(PAGE)
    await console.output.close(LIMIT_SECONDS)
    assert pipe.read() == "[0] one\nhvdrun: between\n[0] two\nhvdrun: rank 0 on a (slot 0) failed first: exit code 3\n"


def test_github_actions_gets_the_page_also_as_an_annotation_on_a_line_of_its_own(pipe: Screen) -> None:
    console = make_console(pipe, {"GITHUB_ACTIONS": "true"})
    console.page(PAGE)
    console.end(LIMIT_SECONDS)
    assert pipe.read() == (
        "::error title=hvdrun::rank 0 on a (slot 0) failed first: exit code 3\n"
        "hvdrun: rank 0 on a (slot 0) failed first: exit code 3\n"
    )


def test_a_line_after_the_end_is_still_written(pipe: Screen) -> None:
    console = make_console(pipe)
    console.end(LIMIT_SECONDS)
    console.page(PAGE)
    assert pipe.read().startswith("hvdrun: rank 0")


def test_a_line_after_the_end_never_waits(pipe: Screen) -> None:
    console = make_console(pipe)
    console.end(LIMIT_SECONDS)
    os.write(pipe.writing, b"x" * fcntl.fcntl(pipe.writing, fcntl.F_GETPIPE_SZ))
    console.notice("into a full pipe")


def test_a_reader_that_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    console = Console(marks=Marks(), descriptors=dict.fromkeys(OutputStream, writing))
    console.notice("x")
    assert not console.end(LIMIT_SECONDS)
    console.page(PAGE)
    os.close(writing)


PLAIN = "[0] text", "hvdrun: rank 0"
COLOURED = "\x1b[36m[0]\x1b[39m text", "\x1b[1;31mhvdrun: rank 0"


@pytest.mark.parametrize(
    ("kind", "environment", "starts"),
    [
        ("terminal", {"TERM": "xterm"}, COLOURED),
        ("terminal", {"NO_COLOR": "1"}, PLAIN),
        ("terminal", {"TERM": "dumb"}, PLAIN),
        ("pipe", {"TERM": "xterm", "FORCE_COLOR": "1"}, PLAIN),
    ],
)
@in_loop
async def test_marks_and_page_have_colours_on_a_terminal_that_may_have_them(
    request: pytest.FixtureRequest, kind: str, environment: dict[str, str], starts: tuple[str, str]
) -> None:
    screen: Screen = request.getfixturevalue(kind)
    console = make_console(screen, environment)
    await console.output.write(at(0), 0, OutputStream.STDOUT, b"text\n")
    console.page(PAGE)
    await console.output.close(LIMIT_SECONDS)
    for line, start in zip(screen.read().splitlines(), starts, strict=True):
        assert line.startswith(start)
        assert ("\x1b" in line) == ("\x1b" in start)


@in_loop
async def test_a_notice_on_a_terminal_erases_a_workers_progress_bar(terminal: Screen) -> None:
    console = make_console(terminal, {"NO_COLOR": "1"})
    await console.output.write(at(0), 0, OutputStream.STDERR, b"50%\rx")
    console.notice("stop")
    await console.output.close(LIMIT_SECONDS)
    assert terminal.read() == "[0] 50%\r\x1b[Khvdrun: stop\r\n"


@in_loop
async def test_a_prompt_is_shown_on_a_terminal_though_its_line_has_no_end(terminal: Screen) -> None:
    console = make_console(terminal, {"NO_COLOR": "1"})
    await console.output.write(at(0), 0, OutputStream.STDOUT, b"(Pdb) ")
    assert await asyncio.to_thread(terminal.reader.read1) == b"[0] (Pdb) "
    console.notice("stop")
    await console.output.close(LIMIT_SECONDS)
    assert terminal.read() == "\r\nhvdrun: stop\r\n"


async def show_long_start(screen: Screen, environment: Mapping[str, str]) -> Console:
    """A console after a long start: its live line has been drawn where the screen can be redrawn."""
    console = make_console(screen, environment)
    looked = asyncio.Event()

    def look() -> StartProgress:
        looked.set()
        return StartProgress(1, 1, 0, 2)

    line = console.make_start_line(look, 60.0)
    line.open(asyncio.get_running_loop(), time.monotonic() - 2)
    if os.isatty(screen.writing) and environment.get("TERM") != "dumb":
        async with asyncio.timeout(LIMIT_SECONDS):
            await looked.wait()
    return console


DRAWN = r"\r\x1b\[K(\x1b\[36m)?hvdrun: hosts connected 1/1, workers joined 0/2, \d+\.\d s(\x1b\[0m)?\r\x1b\[K"


@pytest.mark.parametrize("environment", [{"TERM": "xterm"}, {"NO_COLOR": "1"}])
@in_loop
async def test_the_live_line_of_a_start_is_gone_before_anything_else_is_written(
    terminal: Screen, environment: dict[str, str]
) -> None:
    console = await show_long_start(terminal, environment)
    await console.output.write(at(0), 0, OutputStream.STDOUT, b"text\n")
    console.notice("words")
    await console.output.close(LIMIT_SECONDS)
    shown = re.fullmatch(DRAWN + r"(\x1b\[36m)?\[0\](\x1b\[39m)? text\r\nhvdrun: words\r\n", terminal.read())
    assert shown is not None
    assert (shown[1] is None) == ("NO_COLOR" in environment)


@pytest.mark.parametrize("notices", [0, 1])
def test_hvdruns_own_sentences_or_the_end_replace_the_live_line(terminal: Screen, notices: int) -> None:
    console = asyncio.run(show_long_start(terminal, {"TERM": "xterm"}))
    for _ in range(notices):
        console.notice("words")
    console.end(LIMIT_SECONDS)
    assert re.fullmatch(DRAWN + notices * r"hvdrun: words\r\n", terminal.read())


def test_no_live_line_appears_where_lines_cannot_be_redrawn(terminal: Screen, pipe: Screen) -> None:
    async def show(screen: Screen, environment: dict[str, str]) -> str:
        console = await show_long_start(screen, environment)
        assert len(asyncio.all_tasks()) == 1  # this test alone: no task draws a line
        console.notice("words")
        await console.output.close(LIMIT_SECONDS)
        return screen.read()

    assert asyncio.run(show(pipe, {"TERM": "xterm"})) == "hvdrun: words\n"
    assert asyncio.run(show(terminal, {"TERM": "dumb"})) == "hvdrun: words\r\n"
