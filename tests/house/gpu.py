"""`make gpu`: runs every test marked gpu, and prints one page: on what, how many passed and failed, how fast it is."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(sys.executable).parent
_LIMIT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Counts:
    """Of tests."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        ran = f"{self.passed} passed, {self.failed} failed" if self.passed + self.failed else "0 run"
        return f"{ran}, {self.skipped} skipped"


def read_counts(report: str) -> Counts:
    """What pytest's report in JUnit's XML says."""
    suites = ET.fromstring(report).iter("testsuite")  # noqa: S314 - our own pytest's
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", "0"))
        failed += int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        skipped += int(suite.get("skipped", "0"))
    return Counts(total - failed - skipped, failed, skipped)


def run_tests() -> Counts:
    """Run them, showing what they print."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(PROGRAMS / "pytest"), "-m", "gpu", f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False)
        return read_counts(report.read_text(encoding="utf-8")) if report.exists() else Counts(0, 1, 0)


def describe_machine() -> dict[str, str]:
    """Its GPUs, their driver, and what torch was built with."""
    import torch  # noqa: PLC0415 - takes seconds, and the tests of this file need none
    import torch.distributed as dist  # noqa: PLC0415 - the same

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    nccl: Any = torch.cuda.nccl
    version = ".".join(map(str, nccl.version())) if names and dist.is_nccl_available() else "none"
    return {
        "GPUs": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none",
        "driver": find_driver(),
        "torch": torch.__version__,
        "NCCL": version,
    }


def find_driver() -> str:
    """NVIDIA's driver, by its own tool."""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "none"
    return ", ".join(dict.fromkeys(said.split()))


def measure_bandwidth(*words: str) -> str:
    """That of an allreduce between the GPUs, or between two workers that share the only one."""
    command = [str(PROGRAMS / "hvdrun"), *words, sys.executable, str(ROOT / "benchmarks" / "bandwidth.py")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS)
    for line in finished.stdout.splitlines():
        _, brace, rest = line.partition("{")
        if brace:
            found = json.loads(brace + rest)
            size = f"{found['bytes'] >> 20} MiB between {found['workers']} workers"
            return f"{found['gigabytes_per_second']} GB/s, allreduce of {size}"
    return f"not measured: hvdrun ended with exit code {finished.returncode}: {finished.stderr.strip()[-500:]}"


def make_page(machine: Mapping[str, str], counts: Counts, bandwidth: str) -> str:
    """The page."""
    rows = {**machine, "tests": str(counts), "bandwidth": bandwidth}
    return "\n".join(f"{name:<12}{value}" for name, value in rows.items())


def main() -> int:
    """1 when a test failed, or nothing could be measured."""
    counts = run_tests()
    machine = describe_machine()
    bandwidth = "not measured: there is no GPU"
    if machine["GPUs"] != "none":
        import torch  # noqa: PLC0415 - as above

        bandwidth = measure_bandwidth("-np", str(max(2, torch.cuda.device_count())))
    sys.stdout.write(f"\n{make_page(machine, counts, bandwidth)}\n")
    return int(counts.failed > 0 or "exit code" in bandwidth)


if __name__ == "__main__":
    sys.exit(main())
