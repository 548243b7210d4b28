"""`make gpu`: runs every test marked gpu, the most valuable first, and measures; one page shows what was found.

The page is written anew before each test, so that a run that is cut off leaves one. It lies beside the results in
`gpu-report.json`, with which `--failed` runs again only what has failed. Tests and measurements end within 8 minutes.

The variable HVDRUN_GPU_FOLDER says where both lie; beside them is what jobs that hang have left: stacks, logs, notes.

The tests run in a process of their own. Where a test ends that process, or hangs in a call that no signal interrupts,
it counts as failed, and another process runs the rest.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.house.gpu_figures import NOT_MEASURED, list_programs, measure
from tests.house.gpu_watch import watch

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(os.environ.get("HVDRUN_GPU_FOLDER", ROOT)).resolve()
REPORT = FOLDER / "gpu-report.json"
PAGE = FOLDER / "gpu-report.txt"
EVIDENCE = FOLDER / "gpu-evidence"  # of jobs that have failed: a folder for each test
FAILURES = 10  # after which the tests end
NCCL_BETWEEN = "NCCL between ranks, also of one card"
TRANSPORT = "transport"  # the property of a test that names what carries CUDA tensors between ranks
TEST_SECONDS = 340.0  # after which no test begins
LAST_SECONDS = 30.0  # which the last test may take longer
# In the order of their value; a file that is not named comes last.
FILES = (
    "tests/worker_runtime/test_transport.py",
    "tests/system/test_recovery_on_gpus.py::test_a_job_outlives_twenty_losses",
    "tests/worker_runtime/torch/test_sync_batch_norm.py",
    *("tests/worker_runtime/torch/test_device_checks.py", "tests/worker_runtime/torch/test_snapshot_on_devices.py"),
    "tests/worker_runtime/groups/backends/test_nccl.py",
    *("tests/worker_runtime/collectives/", "tests/worker_runtime/test_random_collectives.py"),
    *("tests/worker_runtime/torch/test_optimizer.py", "tests/worker_runtime/torch/test_averaging.py"),
    "tests/worker_runtime/reduction/",
    "tests/system/test_recovery_on_gpus.py",
    *("tests/worker_runtime/torch/", "tests/worker_runtime/api/"),
)
# A machine without an index has the pytest that it has: pytest 8 lacks an option of pyproject.toml, and may say so.
ANY_PYTEST = ("--override-ini=addopts=--import-mode=importlib --strict-markers -ra", "-Wignore:Unknown config option")
_LINES = 12  # of a failure, on the page
_CHARACTERS = 300  # of a line


@dataclass(slots=True)
class Report:
    """What a run has found.

    transport: what carries CUDA tensors between ranks; "" as long as no test has reported it.
    machine: the card and its software.
    passed: how many tests.
    failed: the last lines of each failed test, by its name.
    skipped: how many tests, by reason.
    measured: figures, by their name.
    is_cut: no time was left for some tests.
    tried: the tests that have begun.
    running: the test that runs.
    """

    transport: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    tried: list[str] = field(default_factory=list)
    running: str = ""

    def make_page(self) -> str:
        """The page."""
        ran = f"{self.passed} passed, {len(self.failed)} failed" if self.passed + len(self.failed) else "0 run"
        counts = f"{ran}, {sum(self.skipped.values())} skipped" + (", not all were tried" if self.is_cut else "")
        first = {TRANSPORT: self.transport} if self.transport else {}
        rows = {**first, **self.machine, "tests": counts, **self.measured}
        if EVIDENCE.is_dir():
            rows["evidence"] = str(EVIDENCE)
        lines = [f"{name:<11} {value}" for name, value in rows.items()]
        if self.running:
            lines.append(f"{'runs':<11} {self.running}")
        lines += [f"{count:>5} skipped: {reason}" for reason, count in self.skipped.items()]
        for name, text in self.failed.items():
            lines += ["", f"FAILED {name}", *(line[:_CHARACTERS] for line in text.splitlines()[-_LINES:])]
        return "\n".join(lines)

    def write(self) -> None:
        """Write the results and the page."""
        for path, text in ((REPORT, json.dumps(asdict(self), indent=1)), (PAGE, f"{self.make_page()}\n")):
            whole = path.with_suffix(".new")
            whole.write_text(text, encoding="utf-8")
            whole.replace(path)  # a program that ends this process leaves the one or the other

    def read(self) -> None:
        """Take over the results that another process has written."""
        for name, value in json.loads(REPORT.read_text(encoding="utf-8")).items():
            setattr(self, name, value)


class Recorder:
    """A plugin of pytest: orders the tests that have not been tried, ends them in time, and keeps the report written.

    Args:
        report: where results are noted.
        clock: returns the time in seconds.
        limit_seconds: after which no test begins.
    """

    def __init__(
        self, report: Report, clock: Callable[[], float] = time.monotonic, limit_seconds: float = TEST_SECONDS
    ) -> None:
        self._report = report
        self._clock = clock
        self._deadline = clock() + limit_seconds
        self._session: pytest.Session | None = None
        self._tests_left = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Put the most valuable tests first, and leave out those of a former process."""
        tried = set(self._report.tried)
        items[:] = [item for item in items if item.nodeid not in tried]
        items.sort(key=lambda item: rank_file(item.nodeid))
        self._session, self._tests_left = session, len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported, or that lacks something here."""
        if report.failed:
            self._report.failed[report.nodeid] = report.longreprtext
        elif report.skipped:
            self._note_skip(report.longrepr)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write the report before each test, which may end this process."""
        self._report.tried.append(nodeid)
        self._report.running = nodeid
        self._report.write()

    def pytest_runtest_logfinish(self) -> None:
        """Begin no other test when the time is over."""
        self._report.running = ""
        self._tests_left -= 1
        if self._tests_left and self._session is not None and self._clock() > self._deadline:
            self._report.is_cut = True
            self._session.shouldstop = "no time is left"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a result, and what carries tensors where it reports that."""
        self._report.transport = str(dict(report.user_properties).get(TRANSPORT, self._report.transport))
        if report.failed:
            self._report.failed[report.nodeid] = (
                f"{report.capstderr}\n{report.longreprtext}"  # the stacks of ranks first
            )
        elif report.skipped:
            self._note_skip(report.longrepr)
        elif report.when == "call":
            self._report.passed += 1

    def _note_skip(self, why: object) -> None:
        """Count a reason, as pytest represents it."""
        reason = str(why[2]) if isinstance(why, tuple) else "it is expected to fail"
        reason = reason.removeprefix("Skipped: ")
        self._report.skipped[reason] = self._report.skipped.get(reason, 0) + 1


def rank_file(name: str) -> int:
    """The place of a test in the order of value; a file takes precedence over its folder."""
    places = [(len(prefix), place) for place, prefix in enumerate(FILES) if name.startswith(prefix)]
    return max(places, default=(0, len(FILES)))[1]


def list_files() -> list[str]:
    """The files with tests marked gpu, also by the marker `devices`: others may import what this machine lacks."""
    marks = ("mark.gpu", "mark.devices")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if any(mark in file.read_text("utf-8") for mark in marks)]


def run_part(report: Report, chosen: Sequence[str], limit_seconds: float) -> None:
    """Run those tests in this process that have not been tried, showing what pytest prints; write the results."""
    options = [
        "-m",
        "gpu and not nightly",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--maxfail={FAILURES - len(report.failed)}",
        *ANY_PYTEST,
    ]
    recorder = Recorder(report, limit_seconds=limit_seconds)
    code = pytest.main(
        [*options, f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}", *chosen], plugins=[recorder]
    )
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR) or not (
        report.passed or report.failed or report.skipped
    ):
        report.failed["pytest"] = f"it ended with {code!s}, and has run no test"
    report.write()  # after an interruption with the test that ran


def run_tests(report: Report, command: Sequence[str], limit_seconds: float = TEST_SECONDS) -> None:
    """Run tests by processes that write the report, one after the other until one ends by itself.

    Args:
        report: takes the results.
        command: of a process, without how many seconds are left, its last argument.
        limit_seconds: after which no test begins.
    """
    deadline = time.monotonic() + limit_seconds
    report.write()
    while (left := deadline - time.monotonic()) > 0 and len(report.failed) < FAILURES:
        end = watch([*command, str(left)], REPORT, deadline + LAST_SECONDS)
        report.read()
        if not report.running:
            if end:
                report.failed.setdefault("pytest", end)
            return
        report.failed[report.running] = end or "it ended the process of the tests"
        report.running = ""
        report.write()
    report.is_cut = True


def describe_machine() -> dict[str, str]:
    """The machine's GPUs, their driver, and what torch was built with."""
    import torch  # noqa: PLC0415 - takes seconds, and the tests of this file need none
    import torch.distributed as dist  # noqa: PLC0415 - takes seconds, and the tests of this file need none

    names = Counter(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    nccl: Any = torch.cuda.nccl
    version = ".".join(map(str, nccl.version())) if names and dist.is_nccl_available() else "none"
    return {
        "GPUs": ", ".join(f"{count} x {name}" for name, count in names.items()) or "none",
        "driver": find_driver(),
        "torch": torch.__version__,
        "NCCL": version,
        "Python": sys.version.partition(" ")[0],
    }


def find_driver() -> str:
    """NVIDIA's driver, by its own tool."""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "none"
    return ", ".join(dict.fromkeys(said.split()))


def choose_backend(transport: str) -> str:
    """The backend between workers of the measurements, by what the first test has reported."""
    return "nccl" if transport == NCCL_BETWEEN else "gloo"


def measure_rest(report: Report) -> None:
    """Measure what the report has no figures of; write it after each program."""
    import torch  # noqa: PLC0415 - takes seconds, and the tests of this file need none

    left = {name for name, figure in report.measured.items() if figure.startswith(NOT_MEASURED)}
    is_first = not report.measured
    with tempfile.TemporaryDirectory() as folder:
        programs = list_programs(Path(folder), "cuda", choose_backend(report.transport), torch.cuda.device_count())
        for name, rows in measure([program for program in programs if is_first or program.name in left]):
            report.measured.pop(name, None)
            report.measured.update(rows)
            report.write()


def main() -> int:
    """1 when a test or a measurement failed."""
    parser = argparse.ArgumentParser(description="Run the tests that need a GPU, and measure.")
    parser.add_argument("--failed", action="store_true", help=f"run what has failed, or was not tried: {REPORT.name}")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        *chosen, seconds = arguments.words
        (report := Report()).read()
        run_part(report, chosen, float(seconds))
        return 0
    chosen = list_files()
    report = Report(machine=describe_machine())
    if arguments.failed:
        former = json.loads(REPORT.read_text(encoding="utf-8"))
        if former["is_cut"]:
            report.tried = [name for name in former["tried"] if name not in former["failed"]]
        else:
            chosen = [name for name in former["failed"] if name.startswith("tests/")]
        report.transport, report.measured = former["transport"], former["measured"]
        if not chosen and not any(figure.startswith(NOT_MEASURED) for figure in report.measured.values()):
            sys.stdout.write("nothing has failed in the last run\n")
            return 0
    shutil.rmtree(EVIDENCE, ignore_errors=True)
    if chosen:
        run_tests(report, [sys.executable, "-m", "tests.house.gpu", "--part", "--", *chosen])
    if report.machine["GPUs"] != "none":
        measure_rest(report)
    report.write()
    sys.stdout.write(f"\n{report.make_page()}\n")
    return int(bool(report.failed) or any("exit code" in figure for figure in report.measured.values()))


if __name__ == "__main__":
    sys.exit(main())
