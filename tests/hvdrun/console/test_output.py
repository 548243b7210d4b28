"""The workers' output: marked, whole, in order; and the last lines that are remembered."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.console.lines import TAIL_LINES
from hvdrun.console.marks import Marks, OutputMarker
from hvdrun.console.output import OutputPrinter
from hvdrun.console.writer import Writer
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.console.screens import Screen, at
from tests.waiting import in_loop

STDOUT, STDERR = OutputStream.STDOUT, OutputStream.STDERR
BOTH_STREAMS = (STDOUT, STDERR)


def test_each_line_carries_its_rank() -> None:
    marker = OutputMarker(Marks())
    assert marker.feed(at(0), 0, STDOUT, b"one\ntwo\n\nthr") == b"[0] one\n[0] two\n[0] \n"
    assert marker.feed(at(12), 12, STDOUT, b"x\n") == b"[12] x\n"
    assert marker.feed(at(0), 0, STDOUT, b"ee\n") == b"[0] three\n"


def test_a_line_carries_the_time_at_which_it_came_and_not_that_of_its_beginning() -> None:
    times = [datetime(2026, 1, 31, 12, 0, second) for second in (2, 1)]  # noqa: DTZ001 - local time is what is shown
    marker = OutputMarker(Marks(times=True), clock=times.pop)
    assert marker.feed(at(0), 0, STDOUT, b"one\ntw") == b"2026-01-31T12:00:01.000 [0] one\n"
    assert marker.feed(at(0), 0, STDOUT, b"o\nthree\n") == (
        b"2026-01-31T12:00:02.000 [0] two\n2026-01-31T12:00:02.000 [0] three\n"
    )


def test_the_clock_shows_this_machines_local_time() -> None:
    before = datetime.now().astimezone().replace(tzinfo=None, microsecond=0)
    shown = OutputMarker(Marks(times=True)).feed(at(0), 0, STDOUT, b"x\n").decode().partition(" ")[0]
    assert before <= datetime.fromisoformat(shown) <= datetime.now().astimezone().replace(tzinfo=None)


def test_without_marks_lines_of_workers_still_do_not_mix() -> None:
    marker = OutputMarker(Marks(ranks=False))
    assert marker.feed(at(0), 0, STDOUT, b"on") == b""
    assert marker.feed(at(1), 1, STDOUT, b"two\n") == b"two\n"
    assert marker.feed(at(0), 0, STDOUT, b"e\n") == b"one\n"


def test_only_the_marks_of_coloured_streams_have_colours() -> None:
    marker = OutputMarker(Marks(), terminals=BOTH_STREAMS, coloured=[STDERR])
    assert marker.feed(at(1), 1, STDERR, b"x\n") == b"\x1b[32m[1]\x1b[39m x\n"
    assert marker.feed(at(1), 1, STDOUT, b"x\n") == b"[1] x\n"


def test_a_last_line_without_newline_is_shown_when_the_worker_has_ended() -> None:
    marker = OutputMarker(Marks())
    assert marker.feed(at(0), 0, STDOUT, b"Segmentation fault") == b""
    assert marker.finish(at(0), STDOUT) == b"[0] Segmentation fault\n"
    assert marker.finish(at(0), STDOUT) == b""
    assert marker.finish(at(7, "never heard of"), STDOUT) == b""


def test_a_line_has_the_rank_that_its_worker_had_when_it_was_completed() -> None:
    marker = OutputMarker(Marks())
    assert marker.feed(at(0), 0, STDOUT, b"zero") == b""
    assert marker.feed(at(1), 1, STDOUT, b"one\nha") == b"[1] one\n"
    assert marker.feed(at(1), 0, STDOUT, b"lf\n") == b"[0] half\n"
    assert marker.finish(at(0), STDOUT) == b"[0] zero\n"
    assert marker.tail(at(1)) == ("one", "half")


def test_a_worker_whose_place_was_taken_is_forgotten() -> None:
    marker = OutputMarker(Marks())
    marker.feed(at(1), 1, STDOUT, b"x\ny")
    marker.feed(at(0, "b"), 0, STDERR, b"z")
    assert marker.list_unfinished() == (at(0, "b"), at(1))
    marker.forget(at(1))
    assert marker.list_unfinished() == (at(0, "b"),)
    assert (marker.tail(at(1)), marker.finish(at(1), STDOUT)) == ((), b"")


def test_on_a_terminal_another_workers_line_erases_a_progress_bar_first() -> None:
    marker = OutputMarker(Marks(), terminals=BOTH_STREAMS)
    assert marker.feed(at(0), 0, STDERR, b"50%\rx") == b"[0] 50%\r"
    assert marker.feed(at(0), 0, STDERR, b"\ry") == b"[0] x\r"  # its own bar it overwrites itself
    assert marker.feed(at(1), 1, STDOUT, b"hello\n") == b"\x1b[K[1] hello\n"
    assert marker.feed(at(1), 1, STDOUT, b"again\n") == b"[1] again\n"


def test_on_a_terminal_the_beginning_of_a_line_is_shown_and_continues_where_it_stands() -> None:
    marker = OutputMarker(Marks(), terminals=BOTH_STREAMS)
    assert [marker.feed(at(0), 0, STDOUT, data) for data in (b"..", b".")] == [b"", b""]
    assert [marker.flush(at(0), STDOUT) for _ in range(2)] == [b"[0] ...", b""]
    assert marker.feed(at(0), 0, STDOUT, b"x\ny\r") + marker.flush(at(0), STDOUT) == b"x\n[0] y"
    assert marker.feed(at(0), 0, STDOUT, b"\n") == b"\r\n"
    assert marker.tail(at(0)) == ("...x", "y")


def test_a_line_that_has_begun_on_a_terminal_is_ended_before_another_and_marked_when_it_continues() -> None:
    marker = OutputMarker(Marks(), terminals=BOTH_STREAMS)
    for rank, stream, text in ((0, STDOUT, b"one"), (1, STDERR, b"two")):
        marker.feed(at(rank), rank, stream, text)
    assert (marker.flush(at(0), STDOUT), marker.flush(at(1), STDERR)) == (b"[0] one", b"\n[1] two")
    assert marker.leave_line(STDERR) + marker.leave_line(STDERR) == b"\n"
    assert marker.feed(at(0), 0, STDOUT, b"more\n") == b"[0] more\n"
    assert marker.finish(at(1), STDERR) == b""  # all of it is shown
    assert marker.tail(at(0)) == ("onemore",)


def test_a_line_that_was_typed_ends_the_prompt() -> None:
    marker = OutputMarker(Marks(), terminals=BOTH_STREAMS)
    marker.feed(at(0), 0, STDOUT, b"(Pdb) ")
    assert marker.flush(at(0), STDOUT) == b"[0] (Pdb) "
    marker.note_typed_line()
    assert marker.feed(at(0), 0, STDOUT, b"42\n") == b"[0] 42\n"


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({STDOUT: "a", STDERR: "a"}, [b"[0] one", b"\n[1] two", b"\n[0] more\n", b""]),
        ({STDOUT: "a", STDERR: "b"}, [b"[0] one", b"[1] two", b"more\n", b"\n"]),
        ({}, [b"[0] one", b"[1] two", b"more\n", b"\n"]),
    ],
)
def test_a_line_that_has_begun_in_a_file_is_ended_before_another_of_that_file(
    files: dict[OutputStream, str], shown: list[bytes]
) -> None:
    marker = OutputMarker(Marks(), files=files)
    for rank, stream, text in ((0, STDOUT, b"one"), (1, STDERR, b"two")):
        marker.feed(at(rank), rank, stream, text)
    first = [marker.flush(at(0), STDOUT), marker.flush(at(1), STDERR)]
    assert [*first, marker.feed(at(0), 0, STDOUT, b"more\n"), marker.finish(at(1), STDERR)] == shown


class Piece(NamedTuple):
    """A worker's write."""

    rank: int
    stream: OutputStream
    data: bytes


texts = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"\xff", b"long text "]), max_size=6).map(b"".join)
pieces = st.lists(st.builds(Piece, st.integers(0, 2), st.sampled_from(OutputStream), texts), max_size=12)


styles = st.builds(Marks, ranks=st.booleans(), hosts=st.booleans(), times=st.booleans())
MARK = re.compile(rb"(?m)(?<![^\r\n])(\d{4}-\S+T\S+ )?(\x1b\[\d+m)?(\[[^\]]*\](\x1b\[39m)? )?")


@given(pieces, styles, st.sets(st.sampled_from(OutputStream)))
def test_without_its_marks_each_streams_output_is_what_the_worker_wrote(
    written: list[Piece], marks: Marks, coloured: set[OutputStream]
) -> None:
    marker = OutputMarker(marks, coloured=coloured)
    shown: dict[tuple[int, OutputStream], bytes] = {}
    for rank, stream, data in written:
        shown[rank, stream] = shown.get((rank, stream), b"") + marker.feed(at(rank), rank, stream, data)
    for (rank, stream), before in shown.items():
        output = before + marker.finish(at(rank), stream)
        original = b"".join(piece.data for piece in written if (piece.rank, piece.stream) == (rank, stream))
        assert MARK.sub(b"", output) in (original, original + b"\n")


@given(pieces)
def test_each_piece_of_output_is_whole_lines_of_one_worker(written: list[Piece]) -> None:
    marker = OutputMarker(Marks())
    for rank, stream, data in written:
        shown = marker.feed(at(rank), rank, stream, data)
        assert all(line.startswith(f"[{rank}] ".encode()) for line in shown.splitlines())
        assert not shown or shown.endswith((b"\n", b"\r"))


def test_the_last_lines_of_both_streams_are_kept_in_the_order_in_which_they_came() -> None:
    marker = OutputMarker(Marks())
    for number in range(100):
        marker.feed(at(0), 0, STDOUT, b"step %d\n" % number)
        marker.feed(at(1), 1, STDOUT, b"other\n")
    marker.feed(at(0), 0, STDERR, b"Traceback\n  caf\xc3\xa9 \xff\n")
    marker.feed(at(0), 0, STDOUT, b"bye\n")
    steps = tuple(f"step {number}" for number in range(101 - TAIL_LINES, 100))
    assert marker.tail(at(0)) == (*steps, "Traceback", "  café \ufffd", "bye")
    assert marker.tail(at(5)) == ()


def test_of_a_progress_bar_only_the_last_form_is_kept() -> None:
    marker = OutputMarker(Marks())
    marker.feed(at(0), 0, STDERR, b"start\n" + b"".join(b"%d%%\r" % percent for percent in range(50)) + b"x")
    assert marker.tail(at(0)) == ("start", "49%")


@given(st.lists(st.lists(st.sampled_from([b"a\n", b"b\r\n", b"c\r", b"\n", b"d"]), max_size=30), max_size=5))
def test_the_same_last_lines_are_kept_however_many_come_together(written: list[list[bytes]]) -> None:
    together, one_by_one = OutputMarker(Marks()), OutputMarker(Marks())
    for texts in written:
        together.feed(at(0), 0, STDOUT, b"".join(texts))
        for text in texts:
            one_by_one.feed(at(0), 0, STDOUT, text)
    assert together.tail(at(0)) == one_by_one.tail(at(0))


def test_very_long_last_lines_are_kept_in_part() -> None:
    marker = OutputMarker(Marks())
    marker.feed(at(0), 0, STDERR, b"x" * 100_000 + b"\ny\n")
    first, last = marker.tail(at(0))
    assert len(first) == 2000
    assert last == "y"


@pytest.fixture
def pipes() -> Iterator[dict[OutputStream, Screen]]:
    with ExitStack() as stack:
        yield {stream: stack.enter_context(closing(Screen.pipe())) for stream in OutputStream}


def make_printer(pipes: dict[OutputStream, Screen]) -> OutputPrinter:
    descriptors = {stream: pipe.writing for stream, pipe in pipes.items()}
    return OutputPrinter(OutputMarker(Marks()), Writer(), descriptors)


@in_loop
async def test_the_printer_keeps_the_streams_apart(pipes: dict[OutputStream, Screen]) -> None:
    printer = make_printer(pipes)
    await printer.write(at(0), 0, STDOUT, b"out\nput")
    await printer.write(at(0), 0, STDERR, b"err\n")
    printer.finish(at(0))
    assert await printer.close(10)
    assert printer.tail(at(0)) == ("out", "err", "put")
    assert pipes[STDOUT].read() == "[0] out\n[0] put\n"
    assert pipes[STDERR].read() == "[0] err\n"


@in_loop
async def test_a_reader_that_has_gone_is_reported_and_the_rest_is_dropped(pipes: dict[OutputStream, Screen]) -> None:
    pipes[STDOUT].reader.close()
    printer = make_printer(pipes)
    reported: list[tuple[OutputStream, type[OSError]]] = []
    heard = asyncio.Event()

    def hear(stream: OutputStream, error: OSError) -> None:
        reported.append((stream, type(error)))
        heard.set()

    printer.call_when_failing(hear, lambda error: pytest.fail(str(error)))
    await printer.write(at(0), 0, STDOUT, b"one\n")
    async with asyncio.timeout(60):
        await heard.wait()
    assert isinstance(printer.find_loss(STDOUT), BrokenPipeError)
    assert printer.find_loss(STDERR) is None
    await printer.write(at(0), 0, STDOUT, b"two\n" * 1_000_000)
    await printer.write(at(0), 0, STDERR, b"err\n")
    assert not await printer.close(10)
    assert reported == [(STDOUT, BrokenPipeError)]
    assert pipes[STDERR].read() == "[0] err\n"
