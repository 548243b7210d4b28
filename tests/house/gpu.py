"""`make gpu`: runs every test marked gpu, the most valuable first, and measures; one page tells what was found.

The page is written anew after each file, so that a run that is cut off leaves one. It lies beside the results in
`gpu-report.json`, with which `--failed` runs again only what has failed. Tests and measurements end within 8 minutes.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
REPORT = ROOT / "gpu-report.json"
PAGE = ROOT / "gpu-report.txt"
FAILURES = 10  # after which the tests end
TRANSPORT = "transport"  # the property of a test that tells what carries CUDA tensors between ranks
TEST_SECONDS = 360.0  # after which no test begins
_MEASURING_SECONDS = 100.0
# In the order of their value; a file that is not named comes last.
FILES = (
    "tests/worker_runtime/test_transport.py",
    "tests/worker_runtime/groups/backends/test_nccl.py",
    *("tests/worker_runtime/collectives/", "tests/worker_runtime/test_random_collectives.py"),
    *("tests/worker_runtime/torch/test_optimizer.py", "tests/worker_runtime/torch/test_averaging.py"),
    "tests/worker_runtime/reduction/",
    "tests/system/test_recovery_on_gpus.py",
    *("tests/worker_runtime/torch/", "tests/worker_runtime/api/"),
)
_LINES = 12  # of a failure, on the page


@dataclass(slots=True)
class Report:
    """What a run has found.

    transport: what carries CUDA tensors between ranks; "" as long as no test has told.
    machine: the card and its software.
    passed: how many tests.
    failed: the last lines of each failed test, by its name.
    skipped: how many tests, by reason.
    measured: figures, by their name.
    is_cut: no time was left for some tests.
    """

    transport: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    def make_page(self) -> str:
        """The page."""
        ran = f"{self.passed} passed, {len(self.failed)} failed" if self.passed + len(self.failed) else "0 run"
        counts = f"{ran}, {sum(self.skipped.values())} skipped" + (", not all were tried" if self.is_cut else "")
        first = {TRANSPORT: self.transport} if self.transport else {}
        rows = {**first, **self.machine, "tests": counts, **self.measured}
        lines = [f"{name:<12}{value}" for name, value in rows.items()]
        lines += [f"{count:>5} skipped: {reason}" for reason, count in self.skipped.items()]
        for name, text in self.failed.items():
            lines += ["", f"FAILED {name}", *text.splitlines()[-_LINES:]]
        return "\n".join(lines)

    def write(self) -> None:
        """Write the results and the page."""
        REPORT.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        PAGE.write_text(f"{self.make_page()}\n", encoding="utf-8")


class Recorder:
    """A plugin of pytest: orders the tests, ends them in time, and writes the report after each file.

    Args:
        report: where results are noted.
        clock: tells the time in seconds.
        limit_seconds: after which no test begins.
    """

    def __init__(
        self, report: Report, clock: Callable[[], float] = time.monotonic, limit_seconds: float = TEST_SECONDS
    ) -> None:
        self._report = report
        self._clock = clock
        self._deadline = clock() + limit_seconds
        self._file = ""
        self._session: pytest.Session | None = None
        self._tests_left = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Put the most valuable tests first."""
        items.sort(key=lambda item: rank_file(item.nodeid))
        self._session, self._tests_left = session, len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self._report.failed[report.nodeid] = report.longreprtext

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write the report when another file begins."""
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._file = file
            self._report.write()

    def pytest_runtest_logfinish(self) -> None:
        """Begin no other test when the time is over."""
        self._tests_left -= 1
        if self._tests_left and self._session is not None and self._clock() > self._deadline:
            self._report.is_cut = True
            self._session.shouldstop = "no time is left"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a result, and what carries tensors where it tells that."""
        self._report.transport = str(dict(report.user_properties).get(TRANSPORT, self._report.transport))
        if report.failed:
            self._report.failed[report.nodeid] = report.longreprtext
        elif report.skipped:
            reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "it is expected to fail"
            reason = reason.removeprefix("Skipped: ")
            self._report.skipped[reason] = self._report.skipped.get(reason, 0) + 1
        elif report.when == "call":
            self._report.passed += 1


def rank_file(name: str) -> int:
    """The place of a test in the order of value; a file takes precedence over its folder."""
    places = [(len(prefix), place) for place, prefix in enumerate(FILES) if name.startswith(prefix)]
    return max(places, default=(0, len(FILES)))[1]


def list_files() -> list[str]:
    """The files with tests marked gpu, also by the marker `devices`: others may import what this machine lacks."""
    marks = ("mark.gpu", "mark.devices")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if any(mark in file.read_text("utf-8") for mark in marks)]


def run_tests(report: Report, chosen: Sequence[str]) -> None:
    """Run tests, showing what pytest prints; the report has their results."""
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "--timeout=120", f"--maxfail={FAILURES}"]
    code = pytest.main([*options, f"--rootdir={ROOT}", *chosen], plugins=[Recorder(report)])
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR) or not (
        report.passed or report.failed or report.skipped
    ):
        report.failed["pytest"] = f"it ended with {code!s}, and has run no test"


def describe_machine() -> dict[str, str]:
    """Its GPUs, their driver, and what torch was built with."""
    import torch  # noqa: PLC0415 - takes seconds, and the tests of this file need none
    import torch.distributed as dist  # noqa: PLC0415 - the same

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


def find_launcher() -> Sequence[str]:
    """The command of hvdrun, which need not lie beside the interpreter."""
    return [shutil.which("hvdrun", path=str(Path(sys.executable).parent)) or shutil.which("hvdrun") or "hvdrun"]


def measure_bandwidth(*words: str) -> str:
    """That of an allreduce between the GPUs, or between two workers that share the only one."""
    command = [*find_launcher(), *words, sys.executable, str(ROOT / "benchmarks" / "bandwidth.py")]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MEASURING_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not measured: {error}"
    for found in read_figures(finished.stdout):
        size = f"{found['bytes'] >> 20} MiB between {found['workers']} workers"
        return f"{found['gigabytes_per_second']} GB/s, allreduce of {size}"
    return f"not measured: hvdrun ended with exit code {finished.returncode}: {finished.stderr.strip()[-500:]}"


def read_figures(output: str) -> Iterator[Mapping[str, Any]]:
    """The lines of a benchmark that are JSON, behind the number of their rank."""
    for line in output.splitlines():
        _, brace, rest = line.partition("{")
        if brace:
            yield json.loads(brace + rest)


def main() -> int:
    """1 when a test failed, or nothing could be measured."""
    parser = argparse.ArgumentParser(description="Run the tests that need a GPU, and measure.")
    parser.add_argument("--failed", action="store_true", help=f"run only what has failed, as {REPORT.name} tells")
    arguments = parser.parse_args()
    chosen = list_files()
    if arguments.failed:
        chosen = list(json.loads(REPORT.read_text(encoding="utf-8"))["failed"])
        if not chosen:
            sys.stdout.write("nothing has failed in the last run\n")
            return 0
    report = Report(machine=describe_machine())
    run_tests(report, chosen)
    report.measured["bandwidth"] = "not measured: there is no GPU"
    if report.machine["GPUs"] != "none":
        import torch  # noqa: PLC0415 - as above

        report.measured["bandwidth"] = measure_bandwidth("-np", str(max(2, torch.cuda.device_count())))
    report.write()
    sys.stdout.write(f"\n{report.make_page()}\n")
    return int(bool(report.failed) or "exit code" in report.measured["bandwidth"])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
