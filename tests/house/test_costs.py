"""What `make test` and `make nightly` report: files over their budget, what did not run, and how shards are dealt."""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.costs import BUDGETS, Budgets, Costs, CostsPlugin, read_shard
from tests.house import parts
from tests.house.sources import ROOT, read_sources
from tests.system import leftovers
from tests.tiers import FILES

TEST = Budgets("test", 8, {"tests/dear.py": 40})


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_run_every_file_once(shards: int) -> None:
    files = {f"tests/test_{number}.py" for number in range(20)} | {"tests/dear.py"}
    dealt = TEST.deal(files, shards)
    assert sorted(file for shard in dealt for file in shard) == sorted(files)


def test_shards_cost_about_the_same() -> None:
    files = {f"tests/test_{number}.py" for number in range(10)} | {"tests/dear.py"}
    assert sorted(map(len, TEST.deal(files, 3))) == [1, 5, 5]


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 1/3"):
        read_shard(text)


def test_a_file_over_its_budget_is_shown_and_fails_over_twice_of_it() -> None:
    costs = {"tests/dear.py": 41.0, "tests/cheap.py": 17.0, "tests/cheaper.py": 7.0}
    assert sorted(TEST.find_exceeded(costs)) == ["tests/cheap.py", "tests/dear.py"]
    assert list(TEST.find_exceeded(costs, factor=2)) == ["tests/cheap.py"]


def test_the_end_of_shared_ranks_costs_no_file(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    seconds = iter([1.0, 4.0, 20.0])
    monkeypatch.setattr("tests.costs.read_processor_seconds", lambda: next(seconds))
    plugin = CostsPlugin(None)
    test = plugin.pytest_runtest_protocol(request.node, None)
    next(test)
    plugin.pytest_runtest_teardown(request.node, None)
    with pytest.raises(StopIteration):
        test.send(None)
    assert plugin.files == {"tests/house/test_costs.py": 3.0}


def test_each_listed_budget_is_of_a_file_and_has_a_reason() -> None:
    text = BUDGETS.read_text(encoding="utf-8")
    for run in ("test", "nightly"):
        budgets = Budgets.read(run)
        assert [file for file in budgets.listed if not (ROOT / file).exists()] == []
        assert [file for file, seconds in budgets.listed.items() if seconds <= budgets.default] == []
    assert text.count("\nwhy = ") == text.count("\n[") - 1


def test_skipped_tests_are_counted_with_the_command_that_installs_their_needs() -> None:
    needs = "needs root, nft: on Debian, apt-get install nftables iproute2"
    skipped = Counter({needs: 150, "there is no CUDA device": 4})
    lines = [str(line) for line in parts.show_skipped(skipped)]
    assert lines[0].strip() == "154 tests did not run:"
    assert lines[-1] == "To run them:  sudo apt-get install iproute2 nftables && sudo make test"


@pytest.mark.parametrize(("reason", "style"), [("no fish: apt-get install fish", "red"), ("no CUDA device", "")])
def test_skipped_tests_are_red_where_an_installation_would_let_them_run(reason: str, style: str) -> None:
    costs = Costs(skipped=Counter({reason: 150}))
    line = list(parts.show_parts([parts.Outcome("tests", 1.0, costs=costs)]))[1]
    assert [str(span.style) for span in line.spans if "150 skipped" in line.plain[span.start : span.end]] == (
        [style] if style else []
    )
    assert [str(each.style) for each in parts.show_skipped(costs.skipped)][1] == style


def test_costs_are_judged_as_long_as_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LAST", tmp_path / "costs.json")
    assert parts.read_last() == {}
    parts.LAST.write_text('{"files": {"Makefile": 3.0}}')
    assert parts.read_last()["test"].files == {"Makefile": 3.0}
    os.utime(parts.LAST, (0, 0))
    assert parts.read_last() == {}


def test_a_file_is_measured_alone_in_each_run() -> None:
    file = "tests/house/test_sizes.py"
    assert parts.measure_alone("test", file) > parts.measure_alone("nightly", file) == 0.0


def test_pytest_counts_costs_in_its_workers_and_keeps_a_shard(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(
            "import pytest\n\ndef test_runs():\n    pass\n\ndef test_waits():\n    pytest.skip('needs more')\n"
        )
    (tmp_path / "test_d.py").write_text("import pytest\n\npytest.skip('needs all', allow_module_level=True)\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "-n2", "--shard=1/3", f"--costs={tmp_path}/costs", "--rootdir=."]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    costs = Costs.read((tmp_path / "costs").read_text())
    assert (dict(costs.tests), dict(costs.skipped)) == ({"inprocess": 2}, {"needs more": 1, "needs all": 1})
    assert list(costs.files) == ["test_a.py"]


@pytest.mark.parametrize("file", ["Makefile", "CONTRIBUTING.md", "README.md"])
def test_every_test_file_that_a_page_names_exists(file: str) -> None:
    named = re.findall(r"\btests/[\w/.]*\w", (ROOT / file).read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_path_of_a_tier_exists() -> None:
    assert [path for paths in FILES.values() for path in paths if not (ROOT / path).exists()] == []


def test_each_variable_of_the_tests_is_explained() -> None:
    read = {name for _, source in read_sources("tests") for name in re.findall(r"\"(HVDRUN_[A-Z_]+)\"", source)}
    explained = set(re.findall(r"`(HVDRUN_[A-Z_]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert read - {leftovers.MARK} == explained
