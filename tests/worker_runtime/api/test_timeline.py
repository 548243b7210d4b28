"""`start_timeline()`, `stop_timeline()` and HOROVOD_TIMELINE, with real ranks."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.waiting import wait_until
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api import basics


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a file."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def list_phases(path: Path, name: str) -> list[str]:
    """What has begun in the row of an operation, and which ranks have asked for it."""
    events = read(path)
    (row,) = [event["pid"] for event in events if event.get("args", {}).get("name") == name]
    return [event["name"] for event in events if event["pid"] == row and event["ph"] in "BX"]


def test_each_operation_has_its_row_and_names_the_last_rank(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        path = tmp_path / "t.json"
        hvd.start_timeline(path, mark_cycles=True)
        hvd.barrier()
        hvd.allreduce(torch.ones(2, 3), name="small")
        if hvd.rank() == 1:
            time.sleep(0.05)
        hvd.allreduce(torch.ones(100_000), name="large")
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(hvd.rank() + 1), name="refused")
        hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], name="several")
        if hvd.rank():
            hvd.stop_timeline()  # sends the last waits
        hvd.barrier()
        hvd.stop_timeline()
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(1), name="after")
        if hvd.rank():
            return
        for name, activity in (("small", "SEQUENCER"), ("large", "GLOO")):
            began, one, other, *phases = list_phases(path, f"allreduce.{name}")
            assert began == "NEGOTIATE_ALLREDUCE"
            assert {one, other} == {"0", "1"}
            assert phases == ["ALLREDUCE", f"{activity}_ALLREDUCE"]
        assert list_phases(path, "allreduce.large")[1:3] == ["0", "1"]
        events = read(path)
        shapes = [event["args"]["shape"] for event in events if "shape" in event.get("args", {})]
        assert {"[2, 3]", "[100000]"} <= set(shapes)
        text = path.read_text()
        assert "CYCLE_START" in text
        for rank in range(2):
            assert {"barrier.noname.1", "allreduce.small", "allreduce.large"} <= set(list_phases(path, f"rank {rank}"))
        assert all(event.get("args") != {"name": "allreduce.refused"} for event in events)
        assert "allreduce.after" not in text

    ranks.run(body, size=2)


def test_the_waits_of_others_come_while_rank_0_calls_nothing_and_before_its_timeline_ends(
    ranks: RankPool, tmp_path: Path
) -> None:
    def body() -> object:
        path = tmp_path / "t.json"
        hvd.start_timeline(path)
        hvd.barrier()
        if hvd.rank() == 0:
            wait_until(lambda: '"rank 1"' in path.read_text())
        hvd.allreduce(torch.ones(1), name="last")
        if hvd.rank() == 0:
            hvd.stop_timeline()
            assert "allreduce.last" in list_phases(path, "rank 1")
        hvd.barrier()
        hvd.stop_timeline()

    ranks.run(body, size=2)


def test_an_operation_without_rank_0_has_its_arrivals(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        path = tmp_path / "t.json"
        hvd.start_timeline(path)
        pair = hvd.add_process_set([1, 2])
        if hvd.rank():
            hvd.allreduce(torch.ones(1), name="of two", process_set=pair)
        hvd.barrier()
        hvd.stop_timeline()
        if hvd.rank() == 0:
            began, *asked = list_phases(path, f"allreduce.of two (process set {pair.process_set_id})")
            assert began == "NEGOTIATE_ALLREDUCE"
            assert sorted(asked) == ["1", "2"]

    ranks.run(body, size=3)


def test_each_rank_has_rows_of_its_steps_and_buckets(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        model = torch.nn.Linear(100, 100)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        path = tmp_path / "t.json"
        hvd.start_timeline(path)
        for _ in range(3):
            if hvd.rank():
                time.sleep(0.01)
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if hvd.rank():
            hvd.stop_timeline()  # sends the last spans
        hvd.barrier()
        hvd.stop_timeline()
        if hvd.rank() == 0:
            for rank in range(2):
                names = list_phases(path, f"rank {rank}: steps")
                steps = [name for name in names if name.startswith("step ")]
                first = int(steps[0].removeprefix("step "))
                assert steps == [f"step {first + number}" for number in range(3)]
                assert names.count("forward+backward") >= 3
            assert "waiting for rank 1" in list_phases(path, "rank 0: steps")

    ranks.run(body, size=2)


def test_a_second_timeline_ends_the_first(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        for name in ("one", "other", "one"):
            hvd.start_timeline(str(tmp_path / name))
            hvd.allreduce(torch.ones(1), name=name)
        hvd.stop_timeline()
        for file, name in (("one", "one"), ("other", "other"), ("one.1", "one")):
            assert list_phases(tmp_path / file, f"allreduce.{name}")[:2] == ["NEGOTIATE_ALLREDUCE", "0"]

    ranks.run(body, size=1)


def test_a_file_that_cannot_be_written_is_an_error_of_rank_0(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        with pytest.raises(FileNotFoundError):
            hvd.start_timeline(tmp_path / "missing" / "t.json")
        hvd.allreduce(torch.ones(1), name="x")

    ranks.run(body, size=1)


@pytest.mark.parametrize("marks", ["1", "0", "", "yes"])
def test_the_variables_of_horovod_record_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: str
) -> None:
    path = tmp_path / "t.json"
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", marks)
    basics.init()
    try:
        hvd.allreduce(torch.ones(1), name="x")
        wait_until(lambda: "allreduce.x" in path.read_text())
    finally:
        basics.shutdown()
    assert list_phases(path, "allreduce.x") == ["NEGOTIATE_ALLREDUCE", "0", "ALLREDUCE"]
    assert ("CYCLE_START" in path.read_text()) == (marks == "1")


def test_a_dynamic_timeline_waits_for_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    basics.init()
    try:
        assert list(tmp_path.iterdir()) == []
        hvd.start_timeline("t.json")
    finally:
        basics.shutdown()
    assert read(tmp_path / "t.json")[0]["args"]["part"] == 0


def test_a_named_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path))
    with caplog.at_level(logging.WARNING, "hvd"):
        basics.init()
    basics.shutdown()
    sentence = f"no timeline is recorded: {tmp_path} (HOROVOD_TIMELINE, --timeline) cannot be written: Is a directory"
    assert caplog.messages == [sentence]
