"""`hvdrun timeline`: what it reads, and what its page says."""

import json
import os
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.timeline.parts import list_parts, read_events
from hvdrun.timeline.program import Request, read_request, render, run
from hvdrun.timeline.summary import Reader, Summary, find_percentile

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
    assert (second.name, round(second.running, 3), round(find_percentile(second.durations, 50), 3)) == (
        "allreduce.b",
        0.595,
        0.595,
    )
    assert round(find_percentile(first.durations, 50), 3) == 0.04
    assert found.notes == [(0.0, "generation 1: 3 ranks")]
    assert found.list_steps() == {}


def summarize(*events: dict[str, object]) -> Summary:
    """What the page would say of these events and those that name the rows."""
    reader = Reader()
    reader.read([*NAMES, *events])
    return reader.summary


NAMES: list[dict[str, object]] = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": JOB},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.a (process set 1)"}},
    {"name": "process_name", "ph": "M", "pid": 3, "args": {"name": "rank 2"}},
    {"name": "process_name", "ph": "M", "pid": 4, "args": {"name": "rank 2: steps"}},
    {"name": "process_name", "ph": "M", "pid": 5, "args": {"name": "rank 2: recoveries"}},
    {"name": "process_name", "ph": "M", "pid": 6, "args": {"name": "rank 2: allreduce.a"}},
]
WAITS, STEPS, RECOVERIES, FILLS = 3, 4, 5, 6


def span(name: str, began: int, ended: int, row: int = WAITS) -> dict[str, object]:
    """A span in a row of rank 2, in milliseconds."""
    return {"name": name, "ph": "X", "ts": began * 1000, "dur": (ended - began) * 1000, "pid": row, "tid": 0}


def test_the_wait_of_a_rank_is_divided_at_the_release_and_the_rest_of_the_communication_is_hidden() -> None:
    first, second = collective(1, 0, {0: 0, 2: 10}, 100, 200), collective(1, 300, {0: 300, 2: 301}, 310, 400)
    found = summarize(*first, *second, span("allreduce.a", 60, 150), span("allreduce.a", 390, 405))
    times = found.rank_times[2]
    assert (round(times.waiting, 3), round(times.exposed, 3)) == (0.04, 0.065)
    assert (round(found.communication, 3), round(times.hidden, 3)) == (0.19, 0.125)


def test_communication_after_the_end_of_a_rank_is_none_that_it_has_hidden() -> None:
    later = collective(1, 300, {0: 300}, 300, 900)
    found = summarize(*collective(1, 0, {0: 0, 2: 0}, 0, 100), span("allreduce.a", 60, 100), *later)
    assert round(found.rank_times[2].hidden, 3) == 0.06


def test_communication_at_the_same_time_counts_once() -> None:
    names = {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "allreduce.b"}}
    found = summarize(names, *collective(1, 0, {0: 0, 2: 0}, 0, 100), *collective(2, 0, {0: 0, 2: 0}, 50, 130))
    assert round(found.communication, 3) == 0.13


def test_the_steps_of_a_rank_are_those_that_it_has_noted() -> None:
    parts = (span("waiting for rank 1", 0, 30, STEPS), span("waiting", 30, 40, STEPS), span("running", 40, 60, STEPS))
    steps = (span("step 1", 0, 100, STEPS), span("step 1 (repeated)", 100, 400, STEPS))
    found = summarize(*parts, span("optimizer", 80, 100, STEPS), *steps, span("filling", 0, 90, FILLS))
    assert found.list_steps() == {2: [0.1, 0.3]}
    times = found.rank_times[2]
    assert {name: round(seconds, 3) for name, seconds in times.parts.items()} == {
        "waiting": 0.04,
        "running": 0.02,
        "optimizer": 0.02,
    }
    assert (times.waited_for, times.exposed) == ({1: 0.03}, 0.02)


def test_the_page_has_what_the_time_of_a_rank_was_spent_on_and_its_recoveries(tmp_path: Path) -> None:
    spans = (span("forward+backward", 0, 300, STEPS), span("waiting", 300, 400, STEPS), span("allreduce.a", 300, 410))
    recoveries = (span("recovery", 500, 700, RECOVERIES), span("recovery", 800, 900, RECOVERIES))
    path = write(tmp_path / "t.json", [*NAMES, *collective(1, 0, {0: 0}, 400, 410), *spans, *recoveries])
    page = run(Request(path, as_json=False)).splitlines()
    assert "  rank  forward+backward  waiting" in page
    assert "     2              0.30     0.10" in page
    assert "     2       2     0.30     0.20" in page
    assert "     2          0.10            0.00   0.01 (100 %)" in page
    (waits,) = json.loads(run(Request(path, as_json=True)))["waits"]
    assert (waits["waiting_seconds"], waits["recoveries"]) == (0.1, [0.2, 0.1])


def test_a_recovery_that_began_before_the_file_counts_as_a_whole() -> None:
    found = summarize({**span("recovery", 0, 1, RECOVERIES), "args": {"seconds": 0.25}})
    assert found.rank_times[2].recoveries == [0.25]


def test_without_noted_steps_a_step_lasts_from_one_result_to_the_next() -> None:
    events = [event for n in range(11) for event in collective(1, n * 100, {0: n * 100}, n * 100, n * 100 + 20)]
    (seconds,) = summarize(*events).list_steps().values()
    assert [round(each, 3) for each in seconds] == [0.1] * 10


def test_a_change_of_the_members_costs_the_time_without_a_release(tmp_path: Path) -> None:
    note = {"name": "generation 2: 2 ranks", "ph": "i", "ts": 700_000, "pid": 0, "tid": 0, "s": "g"}
    events = [*NAMES, *collective(1, 0, {0: 0}, 0, 200), note, *collective(1, 800, {0: 800}, 900, 950)]
    reader = Reader()
    reader.read(events)
    (change,) = reader.summary.changes
    assert (change.generation, change.at, round(change.seconds, 3)) == (2, 0.2, 0.7)
    page = run(Request(write(tmp_path / "t.json", events), as_json=False))
    assert "     0.20 s  generation 2: 0.70 s" in page.splitlines()


def test_a_recording_that_was_stopped_and_started_again_is_no_change_of_the_members() -> None:
    note = {"name": "generation 1: 2 ranks", "ph": "i", "ts": 0, "pid": 0, "tid": 0, "s": "g"}
    again = note | {"ts": 700_000}
    reader = Reader()
    reader.read([*NAMES, note, *collective(1, 0, {0: 0}, 0, 200), again, *collective(1, 800, {0: 800}, 900, 950)])
    assert reader.summary.changes == []


def test_a_page_about_one_collective_of_one_rank_counts_in_the_singular() -> None:
    reader = Reader()
    reader.read([EVENTS[0], EVENTS[2], *collective(1, 0, {0: 0}, 0, 200)])
    assert render(reader.summary, [Path("t.json")]).splitlines()[0] == "t.json: 0.2 s, 1 rank, 1 collective"


def test_the_page_names_who_was_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.json", EVENTS)
    assert main(["timeline", str(path)]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[0] == f"{path}: 1.0 s, 3 ranks, 3 collectives"
    assert "     2       2 ( 67%)   0.18 s (98 % of the waiting, 18 % of the time)" in page.splitlines()
    assert "     2          0.25            0.25   0.43 (63 %)" in page.splitlines()
    slowest = [line.split()[-1] for line in page.splitlines() if "allreduce" in line]
    assert slowest == ["allreduce.b", "allreduce.a?"]


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--json", str(write(tmp_path / "t.json", EVENTS))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stragglers"][0] == {"rank": 2, "last": 2, "of": 3, "waited_seconds": 0.18}
    assert found["collectives"][1]["name"] == "allreduce.a\n"
    waits = {"seconds": 0.5, "waiting_seconds": 0.25, "exposed_seconds": 0.25, "hidden_seconds": 0.425, "parts": {}}
    assert found["waits"] == [{"rank": 2, **waits, "waited_for": [], "recoveries": []}]
    assert (found["communication_seconds"], found["steps"], found["changes"]) == (0.675, [], [])


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


@pytest.mark.parametrize("event", [{"ph": "E", "ts": 5000, "pid": 1}, {"ph": "M", "pid": 1, "args": []}])
def test_an_event_that_is_not_understood_is_left_out(event: dict[str, object]) -> None:
    reader = Reader()
    reader.read([*EVENTS, event])
    assert reader.summary.collectives["allreduce.a\n"].count == 2


def test_help_is_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--help"]) == 0
    assert "Usage: hvdrun timeline" in capsys.readouterr().out


def test_options_may_follow_the_file() -> None:
    asked = read_request(["t.json", "--json"])
    assert not isinstance(asked, str)
    assert (asked.path, asked.as_json) == (Path("t.json"), True)
