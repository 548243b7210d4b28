"""The log of a detached job: its bytes are kept, its files change at a size, and a reader loses nothing."""

import errno
import os
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvdrun.console.log import Record
from hvdrun.jobs import reader as readers
from hvdrun.jobs.detach import _write_line
from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.log import LogWriter, Piece, frame, is_of_worker, is_own, list_logs, name_log, read_line
from hvdrun.jobs.reader import LogReader, RankFilter, read_ranks
from hvdrun.spec.log_format import LogFormat
from rendezvous.core.messages import Level
from rendezvous.wire.orders import OutputStream
from tests.waiting import wait_until

NOW = datetime(2026, 1, 31, 3, 44, 51, 530012, tzinfo=UTC)
OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR


def read_all(reader: LogReader) -> dict[OutputStream, bytes]:
    found = {OUT: b"", ERR: b""}
    for piece in reader.read():
        found[piece.stream] += piece.data
    return found


@pytest.mark.parametrize(
    "data", [b"[0] step 7\n", b"no end", b"\n", b"a\n\nb\n", b"10%\r20%\r\n", b"\xff\x00 P F stdout\n", b"a\r"]
)
@pytest.mark.parametrize("stream", [OUT, ERR])
def test_bytes_come_back_as_they_were(data: bytes, stream: OutputStream) -> None:
    framed = frame(stream, data, NOW)
    pieces = [read_line(line + b"\n") for line in framed.split(b"\n")[:-1]]
    assert b"".join(piece.data for piece in pieces) == data
    assert {piece.stream for piece in pieces} == {stream}


def test_the_form_is_that_of_container_runtimes() -> None:
    assert frame(OUT, b"[0] step 7\n[0] st", NOW) == (
        b"2026-01-31T03:44:51.530012Z stdout F [0] step 7\n2026-01-31T03:44:51.530012Z stdout P [0] st\n"
    )


JSON = Record(NOW, Level.INFO, "login1", "c0ffee", "it starts").render(LogFormat.JSON).encode()


@pytest.mark.parametrize(
    ("stream", "text", "is_hvdruns"),
    [
        (ERR, b"hvdrun: it starts\n", True),
        (ERR, b"2026-01-31T03:44:51.530 hvdrun: it starts\n", True),
        (ERR, JSON, True),
        (OUT, b"hvdrun: it starts\n", False),
        (ERR, b"[0] hvdrun: it starts\n", False),
        (ERR, b'[0] {"time": 3}\n', False),
        (ERR, b'{"time": "3", "level": "info"}\n', False),
    ],
)
def test_a_line_of_hvdrun_is_known_in_each_of_its_forms(stream: OutputStream, text: bytes, is_hvdruns: bool) -> None:
    assert is_own(Piece(stream, text)) is is_hvdruns
    assert is_of_worker(frame(stream, text, NOW)) is not is_hvdruns


def test_a_line_of_another_form_is_an_error() -> None:
    assert read_line(b"Fatal Python error\n") == Piece(ERR, b"Fatal Python error\n")


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[dict[int, OutputStream]]:
    """Descriptors that a log may take."""
    numbers = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("first", "second")]
    yield dict(zip(numbers, (OUT, ERR), strict=True))
    for number in numbers:
        os.close(number)


def read_once(folder: Path) -> dict[OutputStream, bytes]:
    with closing(LogReader(folder)) as reader:
        return read_all(reader)


def make_writer(folder: Path, descriptors: dict[int, OutputStream], most_bytes: int, kept: int) -> LogWriter:
    folder.mkdir()
    return LogWriter(folder, descriptors, lambda: NOW, most_bytes=most_bytes, kept=kept)


def test_a_reader_follows_over_all_files_without_hole_or_double(
    tmp_path: Path, descriptors: dict[int, OutputStream]
) -> None:
    folder = tmp_path / "job"
    writer = make_writer(folder, descriptors, most_bytes=600, kept=1000)
    reader = LogReader(folder)
    chance = random.Random(1)  # noqa: S311 - a story, not a secret
    written, found = {OUT: b"", ERR: b""}, {OUT: b"", ERR: b""}
    for number in range(400):
        descriptor = chance.choice(list(descriptors))
        data = b"%d:" % number + b"x" * chance.randrange(60) + chance.choice([b"\n", b"", b"\r", b"\nab"])
        written[descriptors[descriptor]] += data
        writer.put(descriptor, data)
        if chance.random() < 0.3:
            for stream, more in read_all(reader).items():
                found[stream] += more
    assert writer.end(None)
    for stream, more in read_all(reader).items():
        found[stream] += more
    assert found == written
    assert len(list_logs(folder)) > 1
    reader.close()


def test_old_files_are_dropped_and_the_log_says_it(tmp_path: Path, descriptors: dict[int, OutputStream]) -> None:
    folder = tmp_path / "job"
    writer = make_writer(folder, descriptors, most_bytes=1, kept=2)
    out = next(iter(descriptors))
    slow = LogReader(folder)
    writer.put(out, b"0\n")
    while read_all(slow)[OUT] != b"0\n":
        pass
    for number in range(1, 6):
        writer.put(out, b"%d\n" % number)
        while writer.is_behind:
            pass
    assert writer.end(None)
    assert list_logs(folder) == [5, 6]
    said = read_once(folder)
    assert said[OUT] == b"4\n5\n"
    assert said[ERR] == b"hvdrun: 4 files of the log were dropped before they were read.\n"
    assert b"hvdrun: 3 files of the log were dropped before they were read.\n" in read_all(slow)[ERR]
    slow.close()


def test_files_of_many_servers_stay_while_they_are_small(tmp_path: Path, descriptors: dict[int, OutputStream]) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    out = next(iter(descriptors))
    for number in range(20):
        writer = LogWriter(folder, descriptors, lambda: NOW, most_bytes=1000, kept=2)
        writer.put(out, b"%02d\n" % number)
        assert writer.end(None)
    assert read_once(folder) == {OUT: b"".join(b"%02d\n" % number for number in range(20)), ERR: b""}


def test_a_file_that_is_dropped_while_it_is_opened_is_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 3):
        name_log(tmp_path, number).write_bytes(frame(OUT, b"%d\n" % number, NOW))
    listings = iter([[1], [1], [1, 2, 3]])  # the second file goes after the last of them
    monkeypatch.setattr(readers, "list_logs", lambda folder: next(listings, None) or list_logs(folder))
    with closing(LogReader(tmp_path)) as reader:
        assert read_all(reader)[OUT] == b"1\n"
        assert read_all(reader) == {OUT: b"3\n", ERR: b"hvdrun: 1 file of the log was dropped before it was read.\n"}


def test_bytes_past_the_writer_are_kept_as_errors(tmp_path: Path, descriptors: dict[int, OutputStream]) -> None:
    folder = tmp_path / "job"
    writer = make_writer(folder, descriptors, most_bytes=1000, kept=2)
    _, err = descriptors
    assert writer.end(None)
    with open(err, "wb", closefd=False) as raw:
        raw.write(b"hvdrun: the command was not found\nno end")
    reader = LogReader(folder)
    assert read_all(reader)[ERR] == b"hvdrun: the command was not found\n"
    name_log(folder, 2).touch()
    assert read_all(reader)[ERR] == b"no end"
    reader.close()


def test_a_reader_may_begin_near_the_end(tmp_path: Path, descriptors: dict[int, OutputStream]) -> None:
    folder = tmp_path / "job"
    writer = make_writer(folder, descriptors, most_bytes=200, kept=100)
    out = next(iter(descriptors))
    for number in range(20):
        writer.put(out, b"%02d\n" % number)
        while writer.is_behind:
            pass
    assert writer.end(None)
    whole = read_once(folder)[OUT]
    for last_bytes in (1, 100, 250, 500, 10_000):
        reader = LogReader(folder)
        is_cut = reader.skip_to(last_bytes)
        found = read_all(reader)[OUT]
        reader.close()
        assert whole.endswith(found)
        assert is_cut == (found != whole)
        assert len(found) * 14 >= min(last_bytes - 42, 100)


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        (b"[3] x\n", {3}),
        (b"[3@server1] x\n", {3}),
        (b"[0-2,9] Traceback\n", {0, 1, 2, 9}),
        (b"2026-01-31T12:00:00.123 [4] x\n", {4}),
        (b"hvdrun: rank 3 was lost\n", set()),
        (b"x [3] y\n", set()),
    ],
)
def test_marks_name_the_ranks_of_a_line(line: bytes, ranks: set[int]) -> None:
    assert read_ranks(line) == ranks


def test_the_lines_of_one_rank_are_found() -> None:
    pieces = [Piece(OUT, b"[0] a"), Piece(OUT, b"b\n"), Piece(ERR, b"[1] c\n"), Piece(OUT, b"[0-1] d\n")]
    chosen = RankFilter(0)
    found = [line for piece in pieces for line in chosen.take(piece)]
    assert found == [Piece(OUT, b"[0] ab\n"), Piece(OUT, b"[0-1] d\n")]


def test_a_progress_bar_that_another_stream_ends_keeps_its_stream() -> None:
    chosen = RankFilter(0)
    found = [line for piece in (Piece(ERR, b"[0] 3/16\r"), Piece(OUT, b"\n")) for line in chosen.take(piece)]
    assert found == [Piece(ERR, b"[0] 3/16\r\n")]


def test_a_line_that_a_full_disk_has_cut_ends_before_the_next_one_of_any_stream(
    tmp_path: Path, descriptors: dict[int, OutputStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, write, room = LogWriter(tmp_path, descriptors, lambda: NOW), os.write, [43, 0]

    def take(descriptor: int, data: bytes) -> int:
        left = room.pop(0) if room else len(data)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:left])

    writer._full_seconds = 0.0
    monkeypatch.setattr(os, "write", take)
    first, second = descriptors
    writer.put(first, b"[0] step 7\n")
    wait_until(lambda: not writer.is_behind)
    writer.put(second, b"next\n")
    writer.end(60)
    assert read_once(tmp_path) == {OUT: b"[0] st\n", ERR: b"next\n"}


def test_a_line_of_the_guardian_does_not_continue_one_of_a_killed_server(tmp_path: Path) -> None:
    name_log(tmp_path, 1).write_bytes(frame(OUT, b"[0] step 7\n", NOW)[:-3])
    for _ in range(2):
        _write_line(JobFolder(tmp_path), b"hvdrun: the job ends.\n")
    assert read_once(tmp_path) == {OUT: b"[0] step\n", ERR: b"hvdrun: the job ends.\n" * 2}


def test_a_line_that_has_begun_ends_in_its_own_stream(tmp_path: Path, descriptors: dict[int, OutputStream]) -> None:
    """The console ends it with a line feed, which it writes before a line of the other stream."""
    folder = tmp_path / "job"
    writer = make_writer(folder, descriptors, most_bytes=1000, kept=2)
    out, err = descriptors
    writer.put(err, b"[0]  10%")
    writer.put(err, b" 20%")
    writer.put(out, b"\n[1] step 7\n")
    writer.put(err, b"[0]  10%\r")
    writer.put(out, b"\n[1] ")
    writer.put(err, b"\nhvdrun: a line.\n")
    assert writer.end(None)
    assert read_once(folder) == {OUT: b"[1] step 7\n\n[1] \n", ERR: b"[0]  10% 20%\n[0]  10%\rhvdrun: a line.\n"}
