"""Events of a timeline as JSON of Chrome's trace format."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from worker_runtime.timeline.trace import MOST_ROWS, Arrivals, Clock, Cycle, Event, Note, Run, Trace, Wait

pytestmark = pytest.mark.pure

ASKED = ((1, 10.002), (0, 10.001), (2, 10.004))


def render(*events: Event) -> list[dict[str, Any]]:
    """The objects of these events."""
    trace = Trace(10.0, 5_000_000, "a-job")
    return [json.loads(text) for event in events for text in trace.render(event)]


def arrive(name: str, process_set: int = 0) -> Arrivals:
    """A release of this name."""
    return Arrivals(process_set, name, "ALLREDUCE", 10.005, ASKED)


def run(name: str, *, activity: str = "GLOO_ALLREDUCE", shapes: Sequence[Sequence[int]] = ((2, 3),)) -> Run:
    """An operation of this name, from its release to its end."""
    return Run(0, name, "ALLREDUCE", 10.005, 10.006, 10.009, activity, ["float32"] * len(shapes), shapes)


def test_a_release_has_the_rows_of_horovod_and_names_the_last_rank() -> None:
    row = {"pid": 1, "tid": 0}
    assert render(arrive("allreduce.x")) == [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.x"}},
        {"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},
        {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "ts": 1000, **row},
        {"name": "0", "ph": "X", "ts": 1000, "dur": 0, **row},
        {"name": "1", "ph": "X", "ts": 2000, "dur": 0, **row},
        {"name": "2", "ph": "X", "ts": 4000, "dur": 0, **row},
        {"ph": "E", "ts": 5000, **row, "args": {"last_rank": 2}},
    ]


def test_a_run_has_its_activity_and_its_tensors() -> None:
    row = {"pid": 1, "tid": 0}
    assert render(arrive("allreduce.x"), run("allreduce.x", shapes=((2, 3), ())))[7:] == [
        {"name": "ALLREDUCE", "ph": "B", "ts": 5000, **row},
        {"name": "GLOO_ALLREDUCE", "ph": "B", "ts": 6000, **row},
        {"ph": "E", "ts": 9000, **row},
        {"ph": "E", "ts": 9000, **row, "args": {"dtype": "float32", "shape": "[2, 3], []"}},
    ]


def test_a_run_without_another_rank_has_no_activity() -> None:
    assert [event.get("name") for event in render(run("x", activity=""))[2:]] == ["ALLREDUCE", None]


def test_marks_concern_the_whole_job() -> None:
    assert render(Cycle(10.5), Note(11.0, 'a "note"')) == [
        {"name": "CYCLE_START", "ph": "i", "ts": 500_000, "pid": 0, "tid": 0, "s": "g"},
        {"name": 'a "note"', "ph": "i", "ts": 1_000_000, "pid": 0, "tid": 0, "s": "g"},
    ]


def test_the_file_says_how_the_clock_of_a_rank_differs() -> None:
    (clock,) = render(Clock(3, 1.5))
    assert (clock["name"], clock["ph"]) == ("clock", "M")
    assert clock["args"] == {"rank": 3, "offset_seconds": 1.5, "error": "late by the time of one message"}


def test_the_waits_of_a_rank_have_a_row() -> None:
    first, _, wait, again = render(Wait(3, "allreduce.x", 10.001, 10.002), Wait(3, "y", 10.5, 10.5))
    assert first["args"] == {"name": "rank 3"}
    assert wait == {"name": "allreduce.x", "ph": "X", "ts": 1000, "dur": 1000, "pid": 1, "tid": 0}
    assert again["dur"] == 1


def test_the_other_rows_of_a_rank_have_names() -> None:
    first, _, span = render(Wait(3, "step 1", 9.0, 10.5, "steps"))
    assert first["args"] == {"name": "rank 3: steps"}
    assert (span["ts"], span["dur"]) == (0, 500_000)  # no event is before the file's beginning


def test_a_span_that_has_ended_before_the_file_begins_is_not_in_it() -> None:
    assert render(Wait(3, "step 1", 9.0, 9.5, "steps")) == []


def test_a_request_from_before_the_file_is_at_its_beginning() -> None:
    events = render(Arrivals(0, "x", "ALLREDUCE", 10.5, ((0, 9.0), (1, 10.25))))
    assert [event["ts"] for event in events if "ts" in event] == [0, 0, 250_000, 500_000]


def test_a_flow_leads_from_a_loss_to_the_end_of_its_recovery() -> None:
    _, step, _, _, span, start, end = render(
        Wait(3, "step 1", 10.0, 12.0, "steps"), Wait(3, "recovery", 10.5, 11.5, "recoveries")
    )[1:]
    assert (span["name"], span["dur"]) == ("recovery", 1_000_000)
    assert (start["ph"], start["ts"], end["ph"], end["ts"]) == ("s", 500_000, "f", 1_500_000)
    assert start["id"] == end["id"]
    assert (start["pid"], end["pid"]) == (span["pid"], step["pid"])


@pytest.mark.parametrize(("ended", "shown"), [(10.5, 500_000), (9.875, 1)])
def test_a_recovery_that_began_before_the_file_has_its_whole_length(ended: float, shown: int) -> None:
    _, _, span, *_ = render(Wait(3, "recovery", 9.75, ended, "recoveries"))
    assert (span["ts"], span["dur"], span["args"]) == (0, shown, {"seconds": ended - 9.75})


@pytest.mark.parametrize(("rank", "marks"), [(0, 1), (1, 0)])
def test_a_checkpoint_has_one_mark_across_all_rows(rank: int, marks: int) -> None:
    events = render(Wait(rank, "checkpoint", 10.5, 11.5, "steps"))
    assert sum(event["ph"] == "i" for event in events) == marks


@pytest.mark.parametrize("name", ['"quoted"', "a\nb", "größe", "\\", "\ud800", "</script>"])
def test_any_name_is_valid(name: str) -> None:
    assert render(arrive(name))[0]["args"] == {"name": name}


def test_process_sets_have_rows_of_their_own() -> None:
    events = render(arrive("x"), arrive("x", 2), arrive("x", 2))
    assert [event["args"]["name"] for event in events if event.get("name") == "process_name"] == [
        "x",
        "x (process set 2)",
    ]
    assert {event["pid"] for event in events[-5:]} == {2}


def test_rows_of_names_that_do_not_come_again_are_forgotten() -> None:
    trace = Trace(0.0, 0, "a-job")
    trace.render(arrive("first"))
    trace.render(arrive("kept"))
    for number in range(MOST_ROWS):
        trace.render(arrive(str(number)))
        assert len(trace.render(arrive("kept"))) == 5
    assert len(trace.render(arrive("first"))) == 7


def test_the_first_event_has_the_time_and_the_job() -> None:
    first, _ = (json.loads(text) for text in Trace(10.0, 5_000_000, 'a "job"').begin(3))
    assert first["args"] == {"start_time_since_epoch_in_micros": 5_000_000, "job": 'a "job"', "part": 3}
