"""`hvdrun timeline`: what it reads, and what its page says."""

import json
import os
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.timeline.parts import list_parts, read_events
from hvdrun.timeline.program import read_request
from hvdrun.timeline.summary import Reader

JOB = {"start_time_since_epoch_in_micros": 1_000_000, "job": "a"}


def collective(row: int, begin: int, asked: dict[int, int], released: int, ended: int) -> list[dict[str, object]]:
    """The events of one collective, in milliseconds."""
    place = {"pid": row, "tid": 0}
    return [
        {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "ts": begin * 1000, **place},
        *({"name": str(rank), "ph": "X", "ts": at * 1000, "dur": 0, **place} for rank, at in asked.items()),
        {"ph": "E", "ts": released * 1000, **place},
        {"name": "ALLREDUCE", "ph": "B", "ts": released * 1000, **place},
        {"name": "GLOO_ALLREDUCE", "ph": "B", "ts": released * 1000, **place},
        {"ph": "E", "ts": ended * 1000, **place},
        {"ph": "E", "ts": ended * 1000, **place, "args": {"dtype": "float32"}},
    ]


EVENTS: list[dict[str, object]] = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": JOB},
    {"name": "generation 1: 3 ranks", "ph": "i", "ts": 0, "pid": 0, "tid": 0, "s": "g"},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.a\n"}},
    *collective(1, 0, {0: 0, 1: 10, 2: 100}, 100, 150),
    {"name": "CYCLE_START", "ph": "i", "ts": 0, "pid": 0, "tid": 0, "s": "g"},
    *collective(1, 200, {0: 200, 1: 210, 2: 300}, 300, 330),
    {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "allreduce.b"}},
    *collective(2, 400, {2: 400, 0: 401, 1: 405}, 405, 1000),
    {"name": "process_name", "ph": "M", "pid": 3, "args": {"name": "rank 2"}},
    {"name": "allreduce.b", "ph": "X", "ts": 100_000, "dur": 250_000, "pid": 3, "tid": 0},
    {"name": "allreduce.b", "ph": "X", "ts": 500_000, "dur": 250_000, "pid": 3, "tid": 0},
]


def write(path: Path, events: list[dict[str, object]], cut: int | None = None) -> Path:
    """A part with these events, without its last characters."""
    text = "[\n" + ",\n".join(map(json.dumps, events)) + "\n]"
    path.write_text(text[:cut], encoding="utf-8")
    return path


def test_stragglers_and_slow_collectives_are_added_up() -> None:
    reader = Reader()
    reader.read(iter(EVENTS))
    found = reader.summary
    assert (found.seconds, found.ranks, found.released) == (1.0, {0, 1, 2}, 3)
    assert [(each.rank, each.last, round(each.waited, 3)) for each in found.stragglers.values()] == [
        (2, 2, 0.18),
        (1, 1, 0.004),
    ]
    first, second = found.collectives.values()
    assert (first.count, round(first.running, 3), round(first.waiting, 3)) == (2, 0.08, 0.2)
    assert (second.name, round(second.running, 3), round(second.percentile(50), 3)) == ("allreduce.b", 0.595, 0.595)
    assert round(first.percentile(50), 3) == 0.04
    assert found.notes == [(0.0, "generation 1: 3 ranks")]
    assert found.waits == {2: 0.5}


def test_the_page_names_who_was_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.json", EVENTS)
    assert main(["timeline", str(path)]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[0] == f"{path}: 1.0 s, 3 ranks, 3 collectives"
    assert "     2       2 ( 67%)   0.18 s (18 % of the time)" in page.splitlines()
    assert "     2   0.50 s (50 % of the time)" in page.splitlines()
    slowest = [line.split()[-1] for line in page.splitlines() if "allreduce" in line]
    assert slowest == ["allreduce.b", "allreduce.a?"]


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--json", str(write(tmp_path / "t.json", EVENTS))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stragglers"][0] == {"rank": 2, "last": 2, "of": 3, "waited_seconds": 0.18}
    assert found["collectives"][1]["name"] == "allreduce.a\n"


def test_the_parts_of_a_job_are_read_in_order_and_those_of_another_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "t[1].json", EVENTS)
    later = {**JOB, "start_time_since_epoch_in_micros": 3_000_000}
    for number in (10, 2):
        begin: dict[str, object] = {"name": "process_name", "ph": "M", "pid": 0, "args": later}
        write(tmp_path / f"t[1].json.{number}", [begin, *EVENTS[2:12]])
    other: dict[str, object] = {"name": "process_name", "ph": "M", "pid": 0, "args": {**JOB, "job": "b"}}
    write(tmp_path / "t[1].json.3", [other])
    (tmp_path / "t[1].json.old").write_text("")
    parts = list_parts(path)
    assert [part.name for part in parts] == ["t[1].json", "t[1].json.2", "t[1].json.10"]
    reader = Reader()
    for part in parts:
        reader.read(read_events(part))
    assert reader.summary.collectives["allreduce.a\n"].count == 4
    assert round(reader.summary.seconds, 3) == 2.15


@pytest.mark.parametrize("cut", [-1, -2, -10, -100])
def test_a_part_whose_end_is_cut_off_can_be_read(tmp_path: Path, cut: int) -> None:
    found = list(read_events(write(tmp_path / "t.json", EVENTS, cut)))
    assert EVENTS[: len(found)] == found
    assert len(EVENTS) - len(found) <= 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the file is missing: give one that hvdrun --timeline has written"),
        (["a", "b"], "'b' is one argument too many"),
        (["missing"], "the timeline 'missing' cannot be read: No such file or directory"),
        (["."], "the timeline '.' cannot be read: it is no regular file"),
        (["pipe"], "the timeline 'pipe' cannot be read: it is no regular file"),
        (["text"], "'text' is no timeline"),
        (["numbers"], "'numbers' is no timeline"),
    ],
)
def test_another_file_is_refused(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("text").write_text("root:x:0:0\n")
    Path("numbers").write_text('[\n{"ph": 3, "args": {"start": 1}},\n3\n]')
    assert main(["timeline", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_help_is_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--help"]) == 0
    assert "Usage: hvdrun timeline" in capsys.readouterr().out


def test_options_may_follow_the_file() -> None:
    asked = read_request(["t.json", "--json"])
    assert not isinstance(asked, str)
    assert (asked.path, asked.as_json) == (Path("t.json"), True)
