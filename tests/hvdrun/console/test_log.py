"""The log of hvdrun's own sentences: what a record looks like, and which file is written."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvdrun.console.log import Log, Record
from hvdrun.spec.log_format import LogFileError, LogFormat
from rendezvous.core.messages import Level

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def make_log(form: LogFormat = LogFormat.TEXT) -> Log:
    return Log("a1b2", form, lambda: NOW)


def test_a_record_of_text_has_its_time_level_host_and_job_in_each_line() -> None:
    record = Record(NOW, Level.WARNING, "b", "a1b2", "rank 0 failed\x1b[31m", ("It wrote last:", "| words"))
    lead = "2026-01-31T12:00:00.123+00:00 WARNING b a1b2"
    assert record.render(LogFormat.TEXT).splitlines() == [
        f"{lead} rank 0 failed",
        f"{lead}   It wrote last:",
        f"{lead}   | words",
    ]


def test_a_record_of_json_is_one_line() -> None:
    record = Record(NOW, Level.INFO, "b", "a1b2", "wörds\n\udcff", ("detail",))
    text = record.render(LogFormat.JSON)
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "time": "2026-01-31T12:00:00.123+00:00",
        "level": "info",
        "host": "b",
        "job": "a1b2",
        "message": "wörds\n\udcff",
        "details": ["detail"],
    }


def test_records_of_several_jobs_follow_each_other(tmp_path: Path) -> None:
    for message in ("one", "two"):
        log = make_log()
        log.open(tmp_path / "log")
        assert log.note(Level.INFO, "b", message) is None
        log.end(60)
    assert [line.split()[-1] for line in (tmp_path / "log").read_text().splitlines()] == ["one", "two"]


def test_a_disk_that_does_not_answer_fills_no_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reading = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    log = make_log()
    log.open(tmp_path / "log")
    for _ in range(3_000):
        log.note(Level.INFO, "b", "x" * 1000)
    assert log._writer._queued_bytes < 1_100_000
    log.end(0)
    os.close(reading)


@pytest.mark.parametrize("name", ["folder", "missing/log", "fifo"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(LogFileError, match=r"of --log-file cannot be written: .*; name another file"):
        make_log().open(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
@pytest.mark.parametrize("planted", ["out", "out/log"])
def test_a_link_of_another_user_is_not_followed(tmp_path: Path, planted: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log").write_text("precious")
    link = tmp_path / planted
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "mine" / link.relative_to(tmp_path / "out"))
    os.lchown(link, 65534, 65534)
    with pytest.raises(LogFileError, match="is a link of another user"):
        make_log().open(tmp_path / "out" / "log")
    os.lchown(link, 0, 0)
    make_log().open(tmp_path / "out" / "log")
