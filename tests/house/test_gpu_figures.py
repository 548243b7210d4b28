"""The measurements of `make gpu`: what becomes of their output, and of programs that fail or take too long."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.house import gpu
from tests.house.gpu import NCCL_BETWEEN, Report, choose_backend, measure_rest
from tests.house.gpu_figures import (
    Program,
    list_programs,
    measure,
    read_bandwidth,
    read_objects,
    read_recovery,
    read_rows,
)

PRINTS = (sys.executable, "-c", 'print(\'[0] {"step": "3 ms"}\')')
FAILS = (sys.executable, "-c", "import sys; sys.exit('no card')")
HANGS = (sys.executable, "-c", "import time; time.sleep(600)")


def test_lines_of_json_are_read_behind_the_number_of_their_rank() -> None:
    assert list(read_objects('[0] {"bytes": 1}\nother\n')) == [{"bytes": 1}]


def test_the_bandwidth_is_shown_in_words() -> None:
    output = '[0] {"workers": 2, "bytes": 268435456, "gigabytes_per_second": 1.5}'
    assert read_bandwidth(output) == {"bandwidth": "1.5 GB/s, allreduce of 256 MiB between 2 workers"}


def test_recovery_is_shown_by_its_medians(tmp_path: Path) -> None:
    runs = [{"shrink": each, "ready": 1.0, "full size": 2.0, "steps lost": 0.0} for each in (0.05, 0.07)]
    path = tmp_path / "recovery.json"
    path.write_text(json.dumps({"cases": [{"size": 3, "runs": [*runs, None]}]}), encoding="utf-8")
    assert read_recovery(path)["recovery"].startswith("kill -9 of one of 3 to the others' next step 60 ms; repl")
    path.write_text(json.dumps({"cases": [{"size": 3, "runs": [None]}]}), encoding="utf-8")
    assert read_recovery(path) == {}


def test_a_program_that_fails_or_hangs_costs_only_its_own_figure() -> None:
    programs = [Program(name, words, read_rows) for name, words in (("a", PRINTS), ("b", FAILS), ("c", HANGS))]
    rows = dict(measure([*programs, Program("d", ("/no/such/program",), read_rows)], limit_seconds=3.0))
    assert rows["a"] == {"step": "3 ms"}
    assert rows["b"] == {"b": "not measured: it ended with exit code 1: no card"}
    assert rows["c"]["c"].startswith("not measured: Command")
    assert rows["d"] == {"d": "not measured: no time was left"}


def test_programs_share_the_time() -> None:
    clock = count(0.0, 50.0)
    programs = [Program(name, PRINTS, read_rows) for name in "abc"]
    rows = dict(measure(programs, limit_seconds=120.0, clock=lambda: next(clock)))
    assert [figures.get("step") for figures in rows.values()] == ["3 ms", "3 ms", None]


def test_workers_are_measured_with_the_backend_that_connects_them() -> None:
    assert [choose_backend(reported) for reported in (NCCL_BETWEEN, "NCCL of one rank alone", "")] == [
        "nccl",
        "gloo",
        "gloo",
    ]
    for program in list_programs(Path("folder"), "cuda", "nccl", 4):
        assert program.words[program.words.index("--backend") + 1] == "nccl"


def test_only_missing_rows_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "REPORT", tmp_path / "report.json")
    monkeypatch.setattr(gpu, "PAGE", tmp_path / "report.txt")
    monkeypatch.setattr(gpu, "list_programs", lambda *_: [Program(name, PRINTS, read_rows) for name in "ab"])
    report = Report(measured={"a": "1 ms", "b": "not measured: no time was left"})
    measure_rest(report)
    assert report.measured == {"a": "1 ms", "step": "3 ms"}
    assert json.loads(gpu.REPORT.read_text(encoding="utf-8"))["measured"] == report.measured
