"""The recorder of a timeline: its thread, and what it does where the disk is full or slow."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from worker_runtime.timeline import event_queue as module
from worker_runtime.timeline.recorder import Recorder
from worker_runtime.timeline.trace import Arrivals, Run

ARRIVALS = Arrivals(0, "x", "ALLREDUCE", 2.0, ((0, 1.0), (1, 1.5)))
RUN = Run(0, "x", "ALLREDUCE", 2.0, 2.0, 3.0, "GLOO_ALLREDUCE", ["float32"], [[1]])


def read_names(path: Path) -> list[str]:
    """The names of the events that are no metadata."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return [event["name"] for event in events if event["ph"] in "BXi" and "name" in event]


def test_events_are_in_the_file_soon(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t", "job", mark_cycles=True)
    recorder.note_arrivals(ARRIVALS)
    wait_until(lambda: read_names(tmp_path / "t") == ["CYCLE_START", "NEGOTIATE_ALLREDUCE", "0", "1"])
    recorder.close()


def test_the_end_of_an_operation_counts_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t", "job")
    recorder.note_arrivals(ARRIVALS)
    assert recorder.find_release(0, "x") == 2.0
    recorder.note_run(RUN)
    recorder.note_run(RUN)
    assert recorder.find_release(0, "x") is None
    recorder.note("a note")
    recorder.close()
    assert read_names(tmp_path / "t")[3:] == ["ALLREDUCE", "GLOO_ALLREDUCE", "a note"]


def test_an_operation_without_rank_0_is_not_expected_to_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t", "job")
    recorder.note_arrivals(ARRIVALS._replace(asked=((1, 1.0), (2, 1.5))))
    assert recorder.find_release(0, "x") is None
    recorder.close()


def test_a_full_disk_ends_the_timeline_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path / "t", "job")

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    with caplog.at_level(logging.WARNING, "hvd"):
        recorder.note("a note")
        wait_until(lambda: bool(caplog.messages))
    recorder.note("another one")
    recorder.close()
    assert caplog.messages[0].endswith("ends here: it cannot be written (No space left on device). The job continues.")


def test_events_that_come_too_fast_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    monkeypatch.setattr(module, "HAND_ON_SECONDS", 60.0)
    recorder = Recorder(tmp_path / "t", "job")
    for number in range(15):
        recorder.note(str(number))
    recorder.close()
    assert read_names(tmp_path / "t") == [*map(str, range(10)), "5 events are missing: they came faster than the disk"]
