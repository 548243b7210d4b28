"""What the recorder of a timeline hears of operations: starts, ends and their activities."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from worker_runtime.coordination.messages import Arrived, Waited
from worker_runtime.coordination.ordering.requests import Kind, Release, Request, Signature
from worker_runtime.coordination.wire import RankSpan
from worker_runtime.engine.operation_recorder import OperationRecorder, WaitSender
from worker_runtime.timeline.recorder import Recorder


class PlayedWork:
    """A communication that the test ends."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[Any]:
        """What becomes done when the communication ends."""
        return self.future

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """See `Work`."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """See `Work`."""
        return self.future.done()


def make_release(
    device: str = "cpu", payload: str = "", kind: Kind = Kind.ALLREDUCE, members: Sequence[int] = (0, 1)
) -> Release:
    """A release of "x"."""
    signature = Signature(kind, ("float32",), ((1,),), device=device, payload_dtype=payload)
    return Release(0, Request(0, "x", signature), tuple(members))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The timeline."""
    return tmp_path / "t.json"


def read(path: Path) -> list[dict[str, Any]]:
    """The events, but for the metadata."""
    return [event for event in json.loads(path.read_text()) if event["ph"] != "M"]


@pytest.mark.parametrize(
    ("release", "activity"),
    [
        (make_release(), "GLOO_ALLREDUCE"),
        (make_release("cuda"), "NCCL_ALLREDUCE"),
        (make_release(payload="float32"), "SEQUENCER_ALLREDUCE"),
        (make_release(kind=Kind.COMMIT), "SEQUENCER_COMMIT"),
        (make_release(members=(0,)), None),
    ],
)
def test_an_activity_names_the_part_that_moves_the_data(path: Path, release: Release, activity: str | None) -> None:
    recorder = Recorder(path, "job")
    operations = OperationRecorder(recorder, {"cpu": "gloo", "cuda": "nccl"}.__getitem__)
    operations.note_alone(release, 0)
    operations.note_start(release, ())
    operations.note_end(release)
    operations.note_end(release)
    recorder.close()
    begun = [event["name"] for event in read(path) if event["ph"] == "B"][2:]
    assert begun == ([] if activity is None else [activity])


def test_an_operation_ends_with_its_last_work_and_not_when_it_is_awaited(path: Path) -> None:
    recorder = Recorder(path, "job")
    operations = OperationRecorder(recorder, lambda _: "gloo")
    works = [PlayedWork(), PlayedWork()]
    release = make_release()
    operations.note_arrivals(Arrived([(0, "x", Kind.ALLREDUCE, 1.0, [(0, 0.5), (1, 0.7)])]))
    operations.note_start(release, works)
    for work in works:
        work.future.set_result(None)
    operations.note("between")
    operations.note_end(release)
    recorder.close()
    between = next(event["ts"] for event in read(path) if event.get("name") == "between")
    assert [event["ts"] <= between for event in read(path) if event["ph"] == "E"] == [True] * 3


def test_an_operation_whose_release_is_not_known_is_left_out(path: Path) -> None:
    recorder = Recorder(path, "job")
    OperationRecorder(recorder, lambda _: "gloo").note_end(make_release())
    recorder.close()
    assert read(path) == []


def test_the_waits_of_another_rank_are_placed_by_its_fastest_message(path: Path) -> None:
    recorder = Recorder(path, "job")
    operations = OperationRecorder(recorder, lambda _: "gloo")
    now = time.monotonic()
    operations.note_waited(Waited(1, now + 1.5, 900.0, [("slow", 900.0, 901.0, "")]))
    operations.note_waited(Waited(1, now + 11.1, 910.0, [("fast", 910.0, 912.0, "")]))
    operations.note_waited(Waited(1, now + 21.5, 920.0, [("slow again", 920.0, 921.0, "steps")]))
    recorder.close()
    begun = {event["name"]: event["ts"] for event in read(path)}
    assert begun["fast"] - begun["slow"] == 9_600_000
    assert begun["slow again"] - begun["fast"] == 10_000_000
    assert [event["dur"] for event in read(path)] == [1_000_000, 2_000_000, 1_000_000]
    first, second = [event["args"] for event in json.loads(path.read_text()) if event["name"] == "clock"]
    assert (first["rank"], second["rank"]) == (1, 1)
    assert round(first["offset_seconds"] - second["offset_seconds"], 3) == 0.4


def test_the_waits_of_another_rank_are_sent_in_messages_of_bounded_size() -> None:
    sent: list[int] = []
    sender = WaitSender(lambda waits: sent.append(len(waits)))
    for number in range(2500):
        sender.note_wait(str(number), 0.0)
    sender.close()
    assert sum(sent) == 2500
    assert max(sent) <= 1000


def test_the_spans_of_a_rank_go_the_way_of_its_waits(path: Path) -> None:
    sent: list[RankSpan] = []
    sender = WaitSender(sent.extend)
    sender.note_span("steps", "step 1", 1.0, 2.0)
    sender.close()
    assert sent == [("step 1", 1.0, 2.0, "steps")]
    recorder = Recorder(path, "job")
    now = time.monotonic()
    OperationRecorder(recorder, lambda _: "gloo").note_span("steps", "step 1", now + 1.0, now + 2.0)
    recorder.close()
    assert [(event["name"], event["dur"]) for event in read(path)] == [("step 1", 1_000_000)]
