"""Random tests whose ranks do not agree fail, with the lines at which both ranks stopped."""

import os
from pathlib import Path

import pytest

from tests.hvdrun.testing.suite import run_suite
from tests.hvdrun.testing.wrong_programs import make_program

pytestmark = pytest.mark.system

HEAD = """import pytest, torch
import worker_runtime.torch as hvd
pytestmark = pytest.mark.hvdrun(np=2)

"""


@pytest.mark.parametrize(
    "count", [5, pytest.param(int(os.environ.get("HVDRUN_SOAK_RUNS", "100")), marks=pytest.mark.nightly)]
)
def test_each_wrong_program_fails_with_the_lines_of_both_ranks(tmp_path: Path, count: int) -> None:
    text, expected = HEAD, {}
    for seed in range(count):
        program = make_program(seed)
        start = text.count("\n")
        text += f"{program.text}\n"
        expected[f"test_{seed}"] = [f"at test_wrong.py:{start + line}" for line in program.lines]
    (tmp_path / "test_wrong.py").write_text(text)
    suite = run_suite(tmp_path)
    assert list(suite.outcomes) == list(expected), suite.output
    for name, places in expected.items():
        reported = [line for line in suite.texts[name].splitlines() if line.startswith(("rank 0 ", "rank 1 "))]
        said = [place for line, place in zip(reported, places, strict=True) if f"{place}:" in f"{line}:"]
        assert said == places, suite.texts[name]
        assert suite.outcomes[name] == "failure"
