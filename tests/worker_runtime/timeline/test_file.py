"""The file of a timeline: valid JSON after each write, in parts, never over a part of the same job."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from worker_runtime.timeline.file import MOST_PARTS, TimelineFile, find_job, name_part
from worker_runtime.timeline.trace import Trace


def open_file(path: Path, job: str = "a-job", part_bytes: int = 1 << 20) -> TimelineFile:
    """A file of this job."""
    return TimelineFile(path, Trace(0.0, 0, job), job, part_bytes)


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a part, without its beginning."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found[2:]


def test_a_file_is_valid_after_each_write(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = open_file(path)
    assert read(path) == []
    for count in range(1, 4):
        file.write([f'{{"a": {count}}}', '{"b": 1}'])
        assert len(read(path)) == 2 * count
    file.close()
    assert read(path)[-1] == {"b": 1}


def test_a_full_part_of_a_timeline_names_the_next_part(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = open_file(path, part_bytes=400)
    for number in range(20):
        file.write([f'{{"number": {number}, "long": "{"x" * 40}"}}'])
    file.close()
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 2
    events = [event for part in parts for event in read(part)]
    assert [event["number"] for event in events if "number" in event] == list(range(20))
    assert read(path)[-1]["name"] == "continues in t.json.1"


def test_the_oldest_parts_but_the_first_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = open_file(path, part_bytes=10)
    for number in range(MOST_PARTS + 3):
        file.write([f'{{"number": {number}}}'])
    file.close()
    numbers = sorted(int(part.suffix[1:]) for part in tmp_path.iterdir() if part != path)
    assert path.exists()
    assert numbers == list(range(numbers[-1] - MOST_PARTS + 2, numbers[-1] + 1))


def test_another_rank_0_of_the_job_continues_in_the_next_part(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for part in range(3):
        file = open_file(path)
        assert file.part == part
        file.write([f'{{"part": {part}}}'])
        file.close()
    assert [read(name_part(path, part)) for part in range(3)] == [[{"part": part}] for part in range(3)]


def test_the_file_of_an_earlier_job_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for job in ("first", "second"):
        file = open_file(path, job)
        file.write([f'{{"job": "{job}"}}'])
        file.close()
    assert read(path) == [{"job": "second"}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing folder", "pipe of the job"])
def test_another_kind_of_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "missing folder":
        path = tmp_path / "missing" / "t.json"
    else:
        os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if kind == "pipe of the job" else None
    with pytest.raises(OSError, match=r"t\.json"):
        open_file(path)
    if reader is not None:
        os.close(reader)


@pytest.mark.parametrize("text", ["", "[", "[]", '[\n{"args": 3}\n]', "no JSON", '[\n{"args": {"job"'])
def test_a_file_of_something_else_has_no_job(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    assert find_job(path) is None


def test_a_file_has_its_job(tmp_path: Path) -> None:
    open_file(tmp_path / "t", job='a "job"').close()
    assert find_job(tmp_path / "t") == 'a "job"'
