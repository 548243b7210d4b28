"""What tests cost: seconds per tier, and processor seconds per file, the children of its tests included.

The processor seconds that a file may cost stand in `tests/budgets.toml`.
"""

import argparse
import json
import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.tiers import find_tier

BUDGETS = Path(__file__).with_name("budgets.toml")
_KEY = "costs"  # of what a worker of xdist returns


@dataclass
class Costs:
    """What a run of tests took.

    tiers: seconds per tier, as if one test ran after the other.
    tests: tests that ran, per tier.
    files: processor seconds per file.
    skipped: tests that did not run, per reason.
    """

    tiers: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tests: Counter[str] = field(default_factory=Counter)
    files: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    skipped: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, text: str) -> Self:
        """From the text of `write`."""
        costs = cls()
        for name, values in json.loads(text).items():
            getattr(costs, name).update(values)
        return costs

    def write(self) -> str:
        """As JSON."""
        return json.dumps(vars(self))


@dataclass(frozen=True, slots=True)
class Budgets:
    """The processor seconds that files may cost in one run, `make test` or `make nightly`.

    run: the name of the run.
    default: the budget of a file that is not listed.
    listed: the budgets of expensive files.
    """

    run: str
    default: float
    listed: dict[str, float]

    @classmethod
    def read(cls, run: str) -> Self:
        """From `budgets.toml`."""
        content = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
        default = content.pop("default")[run]
        return cls(run, default, {file: entry[run] for file, entry in content.items() if run in entry})

    def find(self, file: str) -> float:
        """The budget of a file."""
        return self.listed.get(file, self.default)

    def find_exceeded(self, files: Mapping[str, float], factor: float = 1.0) -> Iterator[str]:
        """The files over so many times their budget."""
        return (file for file, seconds in files.items() if seconds > factor * self.find(file))

    def deal(self, files: set[str], shards: int) -> list[set[str]]:
        """Deal files out to so many runs, by their budgets: the dearest first, each to the cheapest run so far."""
        dealt: list[set[str]] = [set() for _ in range(shards)]
        totals = [0.0] * shards
        for file in sorted(files, key=lambda file: (-self.find(file), file)):
            least = totals.index(min(totals))
            dealt[least].add(file)
            totals[least] += self.find(file)
        return dealt


def read_shard(text: str) -> tuple[int, int]:
    """K and N of "K/N".

    Raises argparse.ArgumentTypeError.
    """
    shard, _, shards = text.partition("/")
    if not (shard.isdecimal() and shards.isdecimal() and 1 <= int(shard) <= int(shards)):
        raise argparse.ArgumentTypeError(f"a shard is K/N with 1 <= K <= N, such as 1/3, not {text!r}")
    return int(shard), int(shards)


def read_processor_seconds() -> float:
    """What this process has used, with all children that it has waited for or that live, and theirs.

    A process whose parent has ended before it is not counted.
    """
    own = os.times()
    seconds = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


def rank_files(files: Mapping[str, float]) -> list[tuple[str, float]]:
    """Files with their seconds, the dearest first."""
    return sorted(files.items(), key=lambda entry: -entry[1])


def name_file(item: pytest.Item) -> str:
    """The path of a test's file, from the repository's root."""
    return item.nodeid.partition("::")[0]


class CostsPlugin:
    """Measures a run of pytest, in one process or in xdist's workers.

    file: where to write the costs, besides showing them.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._costs = Costs()
        self._began: float | None = None  # processor seconds before the test file under way
        self._skipped_files: set[str] = set()

    @property
    def files(self) -> Mapping[str, float]:
        """Processor seconds per file, so far."""
        return self._costs.files

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Measure a file's processor seconds, from its first test until the next file's."""
        if self._began is None:
            self._began = read_processor_seconds()
        result = yield
        if nextitem is not None and nextitem.path != item.path:
            self._add_file(item)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Measure the last file before what all files share is torn down: the ranks of a pool end, for seconds."""
        if nextitem is None:
            self._add_file(item)

    def _add_file(self, item: pytest.Item) -> None:
        if self._began is not None:
            now = read_processor_seconds()
            self._costs.files[name_file(item)] += max(0.0, now - self._began)
            self._began = now

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the test's tier to the report."""
        report = yield
        report.user_properties = [*report.user_properties, ("tier", str(find_tier(item)))]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's phase: set-up, call or teardown."""
        tier = dict(report.user_properties).get("tier")
        if tier is None:
            return
        self._costs.tiers[str(tier)] += report.duration
        self._costs.tests[str(tier)] += report.when == "call"
        self._note_skipped(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that is skipped as a whole, once for all workers."""
        if report.skipped and report.nodeid not in self._skipped_files:
            self._skipped_files.add(report.nodeid)
            self._note_skipped(report)

    def _note_skipped(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._costs.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Return a worker's files to the process that adds up."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_KEY] = dict(self._costs.files)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Add a worker's files."""
        for file, seconds in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
            self._costs.files[file] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the seconds of each tier and the five dearest files, or write all for `tests/house/parts.py`."""
        if self._file is not None:
            self._file.write_text(self._costs.write(), encoding="utf-8")
            return
        terminalreporter.section("what the tests cost")
        for tier, seconds in self._costs.tiers.items():
            terminalreporter.write_line(f"{seconds:>8.1f} s {tier}, {self._costs.tests[tier]} tests")
        for file, seconds in rank_files(self._costs.files)[:5]:
            terminalreporter.write_line(f"{seconds:>8.1f} processor seconds {file}")
