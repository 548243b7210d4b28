"""What a detached job has shown of its agents' messages, and what of the log is removed for another server."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvdrun.jobs.log import frame, name_log
from hvdrun.jobs.shown import Shown, read_shown, remove_unacknowledged
from rendezvous.wire.orders import OutputStream

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def write(folder: Path, number: int, *texts: bytes) -> None:
    with name_log(folder, number).open("ab") as log:
        log.writelines(frame(OutputStream.STDOUT, text, NOW) for text in texts)


def note(folder: Path, log: int, **numbers: int) -> None:
    size = name_log(folder, log).stat().st_size
    with closing(Shown(folder, lambda: (log, size))) as shown:
        for identity, number in numbers.items():
            shown.note(identity, number)


def test_another_server_knows_the_last_numbers(tmp_path: Path) -> None:
    assert read_shown(tmp_path) == {}
    write(tmp_path, 1, b"[0] a\n")
    note(tmp_path, 1, host1=7, host2=3)
    note(tmp_path, 1, host1=8)
    assert read_shown(tmp_path) == {"host1": 8, "host2": 3}
    assert (tmp_path / "shown.json").stat().st_mode & 0o777 == 0o600


def test_what_workers_have_written_since_is_removed_and_the_words_of_hvdrun_stay(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n", b"[0] half")
    note(tmp_path, 1, host1=1)
    shown = name_log(tmp_path, 1).read_bytes()
    write(tmp_path, 1, b" a line\n", b"hvdrun: a worker was lost\n")
    with name_log(tmp_path, 1).open("ab") as log:
        log.write(b"Fatal Python error: Segmentation fault\n")
    write(tmp_path, 2, b"[0] b\n")
    remove_unacknowledged(tmp_path)
    kept = frame(OutputStream.STDOUT, b"hvdrun: a worker was lost\n", NOW) + b"Fatal Python error: Segmentation fault\n"
    assert name_log(tmp_path, 1).read_bytes() == shown + kept
    assert name_log(tmp_path, 2).read_bytes() == b""


def test_without_a_record_nothing_was_acknowledged(tmp_path: Path) -> None:
    write(tmp_path, 1, b"[0] a\n", b"hvdrun: it begins\n")
    remove_unacknowledged(tmp_path)
    assert name_log(tmp_path, 1).read_bytes() == frame(OutputStream.STDOUT, b"hvdrun: it begins\n", NOW)


@pytest.mark.parametrize("text", ["", "{", "[1]", "7"])
def test_a_record_that_is_damaged_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "shown.json").write_text(text)
    assert read_shown(tmp_path) == {}
    remove_unacknowledged(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shown.json"]
