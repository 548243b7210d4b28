"""What a detached job has shown of its agents' messages, and what of the log is removed for another server."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvdrun.jobs.log import OWN_LINE, frame, name_log
from hvdrun.jobs.reader import LogReader
from hvdrun.jobs.shown import LogPosition, Shown, read_position, remove_unacknowledged
from rendezvous.wire.orders import OutputStream

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def write(folder: Path, number: int, *texts: bytes) -> None:
    with name_log(folder, number).open("ab") as log:
        for text in texts:
            is_own = text.startswith(OWN_LINE)
            log.write(frame(OutputStream.STDERR if is_own else OutputStream.STDOUT, text, NOW))


def note(folder: Path, log: int, **numbers: int) -> None:
    size = name_log(folder, log).stat().st_size
    with closing(Shown(folder, lambda: (log, size))) as shown:
        shown.note(numbers)


def test_another_server_knows_the_last_numbers(tmp_path: Path) -> None:
    assert read_position(tmp_path) is None
    write(tmp_path, 1, b"[0] a\n")
    for numbers in ({"host1": 7, "host2": 3}, {"host1": 8, "host2": 3}):
        note(tmp_path, 1, **numbers)
        position = read_position(tmp_path)
        assert position is not None
        assert position.numbers == numbers
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("shown.*")} == {0o600}


def test_a_record_that_was_not_written_to_its_end_leaves_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n")
    many = {f"host{number}": 1 for number in range(1000)}
    note(tmp_path, 1, **many)
    note(tmp_path, 1, **dict.fromkeys(many, 2))
    newest = max(tmp_path.glob("shown.*"), key=lambda path: LogPosition.decode(path.read_bytes()).turn)
    with newest.open("r+b") as file:
        file.seek(4096)
        file.write(b"1")
    position = read_position(tmp_path)
    assert position is not None
    assert position.numbers == many


def test_output_of_workers_since_then_is_removed_and_the_words_of_hvdrun_stay(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n", b"[0] half")
    note(tmp_path, 1, host1=1)
    shown = name_log(tmp_path, 1).read_bytes()
    write(tmp_path, 1, b" a line\n", b"hvdrun: a worker was lost\n")
    with name_log(tmp_path, 1).open("ab") as log:
        log.write(b"Fatal Python error: Segmentation fault\n")
    write(tmp_path, 2, b"[0] b\n")
    remove_unacknowledged(tmp_path)
    kept = frame(OutputStream.STDERR, b"hvdrun: a worker was lost\n", NOW) + b"Fatal Python error: Segmentation fault\n"
    assert name_log(tmp_path, 1).read_bytes() == shown + kept
    assert name_log(tmp_path, 2).read_bytes() == b""


def test_a_line_that_a_killed_server_has_not_completed_is_removed(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n")
    note(tmp_path, 1, host1=1)
    shown = name_log(tmp_path, 1).read_bytes()
    with name_log(tmp_path, 1).open("ab") as log:
        log.write(frame(OutputStream.STDOUT, b"[0] b\n", NOW)[:9])
    remove_unacknowledged(tmp_path)
    assert name_log(tmp_path, 1).read_bytes() == shown


def test_a_line_of_a_worker_that_begins_like_those_of_hvdrun_is_removed(tmp_path: Path) -> None:
    line = frame(OutputStream.STDOUT, b"hvdrun: printed by a script\n", NOW)
    name_log(tmp_path, 1).write_bytes(line)
    remove_unacknowledged(tmp_path)
    assert name_log(tmp_path, 1).read_bytes() == b""


def test_without_a_record_nothing_was_acknowledged(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n", b"hvdrun: it begins\n")
    remove_unacknowledged(tmp_path)
    assert name_log(tmp_path, 1).read_bytes() == frame(OutputStream.STDERR, b"hvdrun: it begins\n", NOW)


@pytest.mark.parametrize("text", ["", "{", "[1]", "7"])
def test_a_damaged_record_counts_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "shown.0").write_text(text)
    assert read_position(tmp_path) is None
    remove_unacknowledged(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shown.0"]


def test_a_reader_of_the_log_of_a_running_job_sees_no_line_twice(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n")
    note(tmp_path, 1, host1=1)
    write(tmp_path, 1, b"hvdrun: b\n", b"[0] c\n", b"hvdrun: d\n")
    write(tmp_path, 2, b"hvdrun: e\n", b"[0] c\n")

    def read(*, is_over: bool = False) -> bytes:
        return b"".join(piece.data for piece in reader.read(is_over=is_over))

    with closing(LogReader(tmp_path)) as reader:
        assert read() == b"[0] a\nhvdrun: b\n"
        assert read() == b""
        remove_unacknowledged(tmp_path)
        assert read() == b"hvdrun: d\nhvdrun: e\n"
        write(tmp_path, 2, b"[0] c\n")
        note(tmp_path, 2, host1=2)
        write(tmp_path, 2, b"[0] f\n")
        assert read() == b"[0] c\n"
        assert read(is_over=True) == b"[0] f\n"
