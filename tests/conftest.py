"""The tiers of tests: what each may take, and what each took; and how transcripts are written anew."""

import json
import os
import signal
import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent


class Tier(StrEnum):
    """How much of the world a test needs."""

    PURE = "pure"  # values in, values out
    IN_PROCESS = "in process"  # real servers, files, threads and groups, all owned by the tests
    SYSTEM = "system"  # real hvdrun, real hosts
    HOUSE = "house rules"  # the repository itself


# Other tests are in process. What is tested here uses no clock, network, thread, process or framework.
PURE = (
    "tests/rendezvous/core/",
    "tests/rendezvous/test_bootstrap.py",
    "tests/rendezvous/test_errors.py",
    "tests/rendezvous/test_notices.py",
    "tests/rendezvous/test_orders.py",
    "tests/rendezvous/test_wire.py",
    "tests/worker_runtime/core/",
    "tests/worker_runtime/test_errors.py",
    "tests/hvdrun/console/test_lines.py",
    "tests/hvdrun/console/test_page.py",
    "tests/hvdrun/test_errors.py",
    "tests/hvdrun/test_flags.py",
    "tests/hvdrun/test_hosts.py",
    "tests/hvdrun/test_jobspec.py",
    "tests/hvdrun/test_options.py",
)
HOUSE = ("tests/house/", "tests/protos/")
SYSTEM = ("tests/lab/", "tests/system/")

# Generous, since a busy machine is no fault: they end what hangs. A test that needs another limit carries its own.
LIMIT_SECONDS = {Tier.PURE: 60, Tier.IN_PROCESS: 60, Tier.SYSTEM: 120, Tier.HOUSE: 120}


def find_tier(name: str) -> Tier:
    """The tier of a test, given its file's name or its own, from the repository's root."""
    if name.startswith(PURE):
        return Tier.PURE
    if name.startswith(HOUSE):
        return Tier.HOUSE
    return Tier.SYSTEM if name.startswith(SYSTEM) else Tier.IN_PROCESS


class Costs:
    """Adds up what the tests of each tier take."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seconds: dict[Tier, float] = dict.fromkeys(Tier, 0.0)
        self._tests: Counter[Tier] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's phase: set-up, call or teardown."""
        tier = find_tier(report.nodeid)
        self._seconds[tier] += report.duration
        self._tests[tier] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the sums, and write them for whoever adds up more than tests."""
        terminalreporter.section("what each tier cost")
        for tier, seconds in self._seconds.items():
            terminalreporter.write_line(f"{tier:<12} {self._tests[tier]:>5} tests {seconds:>7.1f} s")
        if self._file is not None:
            self._file.write_text(json.dumps(self._seconds), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --costs and --rewrite."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts anew instead of comparing them")
    parser.addoption("--costs", type=Path, help="write the seconds of each tier into this file, as JSON")


@pytest.fixture(scope="session")
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether transcripts are to be written anew."""
    return bool(pytestconfig.getoption("--rewrite"))


def pytest_configure(config: pytest.Config) -> None:
    """Count costs, and let no law fail because the machine was busy."""
    config.pluginmanager.register(Costs(config.getoption("--costs")), "costs")
    heed_signals()
    # A bare `python` is that of the tests, as for a user whose environment is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    settings.register_profile("hvdrun", deadline=None, print_blob=True)
    settings.load_profile("hvdrun")


def heed_signals() -> None:
    """Undo what `nohup` or a script's `&` has ignored for us: what is tested would inherit it, and rightly obey."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark system tests, and give every test its tier's time limit."""
    for item in items:
        tier = find_tier(item.nodeid)
        if tier is Tier.SYSTEM:
            item.add_marker(pytest.mark.system)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS[tier]))
