"""What tests cost: seconds per tier, and processor seconds per file, the children of its tests included.

A file's budget stands in `tests/budgets.toml`. A run prints every file over its budget; `make nightly` fails when a
file is over twice its budget.
"""

import json
import os
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tiers import find_tier

_BUDGETS = Path(__file__).with_name("budgets.toml")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_KEY = "costs"  # of what a worker of xdist returns


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


@dataclass
class Costs:
    """What a run of tests took.

    tiers: seconds per tier, as if one test ran after the other.
    files: processor seconds per file.
    tests: tests that ran, per tier.
    skipped: tests that did not run, per reason.
    """

    tiers: Counter[str]
    tests: Counter[str]
    files: Counter[str]
    skipped: Counter[str]

    @classmethod
    def none(cls) -> "Costs":
        """The costs of no test."""
        return cls(Counter(), Counter(), Counter(), Counter())

    @classmethod
    def read(cls, text: str) -> "Costs":
        """From `write`'s text."""
        return cls(**{name: Counter(values) for name, values in json.loads(text).items()})

    def write(self) -> str:
        """As JSON."""
        return json.dumps(vars(self))

    def add(self, other: "Costs") -> None:
        """Add those of another run."""
        for name, values in vars(other).items():
            getattr(self, name).update(values)


class CostsPlugin:
    """Measures a run of pytest, in one process or in xdist's workers.

    file: where to write the costs, besides showing them.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._all = Costs.none()
        self._processor: float | None = None  # at the start of the test file under way

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        """Measure a file's processor seconds, from its first test until the next file's."""
        if self._processor is None:
            self._processor = read_processor_seconds()
        result = yield
        if nextitem is None or nextitem.path != item.path:
            now = read_processor_seconds()
            self._all.files[item.nodeid.partition("::")[0]] += max(0.0, now - self._processor)
            self._processor = now if nextitem is not None else None
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Tell whoever adds up which tier a test belongs to."""
        report = yield
        report.user_properties = [*report.user_properties, ("tier", str(find_tier(item)))]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's phase: set-up, call or teardown."""
        tier = dict(report.user_properties).get("tier")
        if tier is None:
            return
        self._all.tiers[tier] += report.duration
        self._all.tests[tier] += report.when == "call"
        if report.skipped and isinstance(report.longrepr, tuple):
            self._all.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Return a worker's files to the process that adds up."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_KEY] = dict(self._all.files)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's files."""
        self._all.files.update(getattr(node, "workeroutput", {}).get(_KEY, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the seconds of each tier, and write all."""
        terminalreporter.section("what each tier cost")
        for tier, seconds in self._all.tiers.items():
            terminalreporter.write_line(f"{tier:<12} {self._all.tests[tier]:>5} tests {seconds:>7.1f} s")
        for file, seconds in self._all.files.most_common(5):
            terminalreporter.write_line(f"{file:<60} {seconds:>7.1f} processor seconds")
        if self._file is not None:
            self._file.write_text(self._all.write(), encoding="utf-8")


def read_budgets() -> dict[str, Any]:
    """What stands in `budgets.toml`."""
    return tomllib.loads(_BUDGETS.read_text(encoding="utf-8"))
