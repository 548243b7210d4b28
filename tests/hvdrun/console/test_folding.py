"""Equal tracebacks of several workers: which lines are shown once, and that each worker's lines keep their order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.console import Console
from hvdrun.console.folding import CAPACITY_BYTES, Part, Source, TracebackFolder, measure_traceback
from hvdrun.console.marks import Marks, OutputMarker
from hvdrun.console.output import FOLDING_SECONDS, OutputPrinter
from hvdrun.console.writer import Writer
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.console.screens import Screen, at
from tests.waiting import happen, in_loop

STDOUT, STDERR = OutputStream.STDOUT, OutputStream.STDERR
BEGIN = b"Traceback (most recent call last):\n"
FRAMES = [BEGIN, b'  File "train.py", line 3, in <module>\n', b"    load()\n"]
TRACEBACK = [*FRAMES, b"ValueError: x\n"]
OTHER_TRACEBACK = [*FRAMES, b"ValueError: y\n"]
JOINT = [b"\n", b"During handling of the above exception, another exception occurred:\n", b"\n"]


def lines(*texts: str) -> list[bytes]:
    return [f"{text}\n".encode() for text in texts]


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (TRACEBACK, 4),
        ([*TRACEBACK, b"more words\n"], 4),
        ([*TRACEBACK, b"  a note\n", b"\n", b"  text\n"], 5),
        ([*TRACEBACK, *JOINT, *OTHER_TRACEBACK, b"more words\n"], 11),
        ([*TRACEBACK, *JOINT, b"more words\n"], 4),
        (FRAMES, 0),
        ([*TRACEBACK, *JOINT, *FRAMES], 0),
        ([b"[rank3]: " + line for line in TRACEBACK], 4),
        (
            lines(
                "  + Exception Group Traceback (most recent call last):",
                '  |   File "train.py", line 3, in <module>',
                "  | ExceptionGroup: two (2 sub-exceptions)",
                "  +-+---------------- 1 ----------------",
                "    | ValueError: x",
                "    +------------------------------------",
                "words",
            ),
            6,
        ),
    ],
)
def test_a_traceback_ends_with_its_last_exception_and_the_notes_of_this_exception(
    written: list[bytes], size: int
) -> None:
    assert measure_traceback(written) == size


def hold(*written: tuple[int, OutputStream, list[bytes]]) -> tuple[list[bytes], list[tuple[list[int], bytes]]]:
    """What is shown at once, and then, with the ranks before each part."""
    folder = TracebackFolder()
    shown = [line for rank, stream, each in written for line in folder.take(Source(at(rank), stream), each, 0)]
    parts = [([source.worker.slot.index for source in part.sources], b"".join(part.lines)) for part in folder.release()]
    assert list(folder.release()) == []
    return shown, parts


def test_equal_tracebacks_are_one_part() -> None:
    shown, parts = hold(
        (0, STDERR, [b"words\n", *TRACEBACK]),
        (1, STDERR, OTHER_TRACEBACK),
        (2, STDERR, TRACEBACK[:2]),
        (2, STDERR, TRACEBACK[2:]),
    )
    assert shown == [b"words\n"]
    assert parts == [([0, 2], b"".join(TRACEBACK)), ([1], b"".join(OTHER_TRACEBACK))]


def test_a_rank_that_torch_has_put_before_each_line_makes_no_difference() -> None:
    written = [(rank, STDERR, [b"[rank%d]: %b" % (rank, line) for line in TRACEBACK]) for rank in range(3)]
    assert hold(*written)[1] == [([0, 1, 2], b"".join(TRACEBACK))]
    assert hold(written[1])[1] == [([1], b"".join(b"[rank1]: " + line for line in TRACEBACK))]


def test_the_failures_of_ranks_by_another_one_are_one_part() -> None:
    folder = TracebackFolder()
    for rank in range(2):
        failed = f"HorovodInternalError: allreduce 'x' failed on rank {rank}: rank 2 was lost\n".encode()
        folder.take(Source(at(rank), STDERR), [*FRAMES, failed], 0)
    (part,) = folder.release()
    assert [source.worker for source in part.sources] == [at(0), at(1)]
    assert part.lines[-1] == b"HorovodInternalError: allreduce 'x' failed on these ranks: rank 2 was lost\n"


def test_lines_that_are_no_traceback_stay_each_workers_own() -> None:
    after = [b"end\n"]
    shown, parts = hold(
        (0, STDERR, TRACEBACK + after), (1, STDOUT, TRACEBACK), (1, STDERR, TRACEBACK + after), (1, STDOUT, [b"out\n"])
    )
    assert shown == TRACEBACK  # on standard output nothing is looked at
    assert parts == [([0, 1], b"".join(TRACEBACK)), ([0], b"end\n"), ([1], b"end\n"), ([1], b"out\n")]


def test_a_traceback_without_its_end_is_not_folded() -> None:
    parts = hold((0, STDERR, FRAMES), (1, STDERR, FRAMES))[1]
    assert parts == [([0], b"".join(FRAMES)), ([1], b"".join(FRAMES))]


def test_the_beginning_of_a_line_that_is_shown_already_is_not_held_back() -> None:
    folder = TracebackFolder()
    assert folder.take(Source(at(0), STDERR), TRACEBACK, shown=1) == TRACEBACK


def test_too_many_lines_are_released() -> None:
    folder = TracebackFolder()
    fullness = []
    for line in (BEGIN, b"x" * CAPACITY_BYTES):
        folder.take(Source(at(0), STDERR), [line], 0)
        fullness.append(folder.is_full)
    list(folder.release())
    assert [*fullness, folder.is_full] == [False, True, False]


PIECES = st.sampled_from(
    [TRACEBACK, OTHER_TRACEBACK, FRAMES, [*TRACEBACK, *JOINT, *OTHER_TRACEBACK], [b"words\n"], [b"\n"], [b"  text\n"]]
)


@given(
    written=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(OutputStream), PIECES), max_size=12),
)
def test_each_worker_s_lines_of_each_stream_keep_their_order(
    written: list[tuple[int, OutputStream, list[bytes]]],
) -> None:
    folder = TracebackFolder()
    parts = []
    for rank, stream, each in written:
        source = Source(at(rank), stream)
        if now := folder.take(source, each, 0):
            parts.append(Part((source,), now))
    parts.extend(folder.release())
    for rank in range(3):
        for stream in OutputStream:
            source = Source(at(rank), stream)
            expected = [line for number, other, each in written for line in each if (number, other) == (rank, stream)]
            assert [line for part in parts if source in part.sources for line in part.lines] == expected


def make_printer(screen: Screen, marks: Marks) -> OutputPrinter:
    return OutputPrinter(OutputMarker(marks, folds=True), Writer(), screen.descriptors)


async def show(screen: Screen, marks: Marks) -> list[str]:
    """What the console shows of two workers with the same traceback."""
    printer = make_printer(screen, marks)
    for rank in range(2):
        await printer.write(at(rank), rank, STDERR, b"".join(TRACEBACK))
        await printer.write(at(rank), rank, STDERR, b"bye\n")
    printer.finish_all()
    assert [printer.tail(at(rank))[-2:] for rank in range(2)] == [("ValueError: x", "bye")] * 2
    await printer.close(60)
    return screen.read().splitlines()


@in_loop
async def test_folded_lines_have_the_ranks_of_all_before_them(pipe: Screen) -> None:
    text = [line.decode().rstrip() for line in TRACEBACK]
    assert await show(pipe, Marks(hosts=True)) == [*(f"[0-1] {line}" for line in text), "[0@a] bye", "[1@a] bye"]


@pytest.mark.parametrize("marks", [Marks(ranks=False), Marks(horovod=True)], ids=["no marks", "marks of Horovod"])
@in_loop
async def test_no_traceback_is_folded_where_marks_cannot_say_whose_lines_they_are(pipe: Screen, marks: Marks) -> None:
    assert len(await show(pipe, marks)) == 2 * (len(TRACEBACK) + 1)


@in_loop
async def test_a_traceback_is_shown_after_a_moment(pipe: Screen) -> None:
    assert FOLDING_SECONDS <= 1
    printer = make_printer(pipe, Marks())
    await printer.write(at(0), 0, STDERR, b"".join(TRACEBACK))
    await happen(lambda: not printer._marker.holds(at(0)), "the moment is over")
    await printer.close(60)
    assert len(pipe.read().splitlines()) == len(TRACEBACK)


@in_loop
async def test_a_prompt_after_a_traceback_does_not_come_before_it(terminal: Screen) -> None:
    printer = OutputPrinter(
        OutputMarker(Marks(), terminals=[STDOUT, STDERR], folds=True), Writer(), terminal.descriptors
    )
    await printer.write(at(0), 0, STDERR, b"".join(TRACEBACK))
    await printer.write(at(0), 0, STDOUT, b"(Pdb) ")
    await happen(lambda: not printer._marker.holds(at(0)), "the prompt is shown")
    await printer.close(60)
    assert [line.split(" ")[1] for line in terminal.read().splitlines()] == [
        "Traceback",
        "",
        "",
        "ValueError:",
        "(Pdb)",
    ]


@in_loop
async def test_a_flood_after_a_traceback_is_shown_immediately(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("wb") as file:
        printer = OutputPrinter(OutputMarker(Marks(), folds=True), Writer(), dict.fromkeys(OutputStream, file.fileno()))
        await printer.write(at(0), 0, STDERR, BEGIN)
        for _ in range(16):
            await printer.write(at(0), 0, STDERR, b"x" * 65_535 + b"\n")
        assert not printer._marker.holds(at(0))
        await printer.close(60)


@in_loop
async def test_lines_that_are_held_back_are_shown_where_a_console_ends_early(pipe: Screen) -> None:
    console = Console(marks=Marks(), folds=True, descriptors=pipe.descriptors)
    await console.output.write(at(0), 0, STDERR, b"".join(TRACEBACK))
    console.end(60)
    assert pipe.read().startswith("[0] Traceback")
