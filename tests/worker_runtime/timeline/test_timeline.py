"""Which timeline a process wants, and the recorder that it opens once."""

import json
from pathlib import Path

import pytest

from worker_runtime.timeline.timeline import Timeline


def test_a_recorder_is_opened_once_for_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    timeline = Timeline()
    timeline.start(Path("t.json"), "job", mark_cycles=False)
    monkeypatch.chdir("/")
    assert timeline.is_wanted
    recorder = timeline.open()
    assert timeline.open() is recorder
    timeline.start(Path(tmp_path / "other"), "job", mark_cycles=False)
    assert timeline.open() is not recorder
    timeline.stop()
    assert not timeline.is_wanted
    assert [json.loads((tmp_path / name).read_text())[0]["args"]["job"] for name in ("t.json", "other")] == ["job"] * 2


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_timeline_after_a_restart_of_all_workers_begins_with_a_mark(tmp_path: Path, restarts: int) -> None:
    timeline = Timeline()
    timeline.start(tmp_path / "t.json", "job", mark_cycles=False, restarts=restarts)
    for _ in range(2):
        timeline.open()
    timeline.stop()
    marks = [event["name"] for event in json.loads((tmp_path / "t.json").read_text()) if event["ph"] == "i"]
    assert marks == ["restart 2: all workers were started again"] * bool(restarts)
