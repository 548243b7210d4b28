"""The measurements of `make gpu`: programs of benchmarks/, and what their figures say on its page.

Long programs come last: what the time does not suffice for is shown as not measured.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
MEASURING_SECONDS = 100.0  # for all together
NOT_MEASURED = "not measured"

Read = Callable[[str], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that measures.

    name: the name of what it measures; the page has it if the program fails.
    words: its command.
    read: makes rows of the page from its output.
    """

    name: str
    words: Sequence[str]
    read: Read


def list_programs(folder: Path, device: str, backend: str, cards: int = 1, *more: str) -> list[Program]:
    """The programs, the most valuable first.

    Args:
        folder: for a file of figures.
        device: where they train, "cuda" or "cpu".
        backend: between workers.
        cards: how many cards there are; the bandwidth is measured between as many workers, and at least two.
        *more: more options of `card.py`, for a short rehearsal.
    """
    hvdrun = [*find_launcher(), "--backend", backend]
    place = ["--device", device]
    step = [sys.executable, str(BENCHMARKS / "card.py"), *place, *more]
    figures = folder / "recovery.json"
    recovery = [sys.executable, str(BENCHMARKS / "recovery.py"), *place, "--backend", backend, "--cases", "three"]
    recovery += ["--runs", "2", "--warm", "1", "--json", str(figures)]
    short = ["--bytes", "1048576"] if device == "cpu" else []
    bandwidth = [sys.executable, str(BENCHMARKS / "bandwidth.py"), *place, *short]
    return [
        Program("step, N=2", [*hvdrun, "-np", "2", *step], read_rows),
        Program("step, N=1", [*hvdrun, "-np", "1", *step], read_rows),
        Program("recovery", recovery, lambda _: read_recovery(figures)),
        Program("bandwidth", [*hvdrun, "-np", str(max(2, cards)), *bandwidth], read_bandwidth),
    ]


def measure(
    programs: Sequence[Program], limit_seconds: float = MEASURING_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[str, dict[str, str]]]:
    """Run the programs one after the other; the name and the rows of each."""
    deadline = clock() + limit_seconds
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": search}
    for program in programs:
        left = deadline - clock()
        if left <= 0:
            yield program.name, {program.name: f"{NOT_MEASURED}: no time was left"}
            continue
        try:
            finished = subprocess.run(
                program.words, env=environment, capture_output=True, text=True, check=False, timeout=left
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            yield program.name, {program.name: f"{NOT_MEASURED}: {error}"}
            continue
        rows = program.read(finished.stdout) if finished.returncode == 0 else {}
        said = finished.stderr.strip()[-500:]
        why = f"{NOT_MEASURED}: it ended with exit code {finished.returncode}: {said}"
        yield program.name, rows or {program.name: why}


def find_launcher() -> Sequence[str]:
    """The command of hvdrun, which need not lie beside the interpreter."""
    return [shutil.which("hvdrun", path=str(Path(sys.executable).parent)) or shutil.which("hvdrun") or "hvdrun"]


def read_objects(output: str) -> Iterator[Mapping[str, Any]]:
    """The lines of a program that are JSON, behind the number of their rank."""
    for line in output.splitlines():
        _, brace, rest = line.partition("{")
        if brace:
            yield json.loads(brace + rest)


def read_rows(output: str) -> dict[str, str]:
    """What `card.py` prints: rows as they are."""
    return {name: str(figure) for found in read_objects(output) for name, figure in found.items()}


def read_bandwidth(output: str) -> dict[str, str]:
    """What `bandwidth.py` prints."""
    rows = {}
    for found in read_objects(output):
        size = f"{found['bytes'] >> 20} MiB between {found['workers']} workers"
        rows["bandwidth"] = f"{found['gigabytes_per_second']} GB/s, allreduce of {size}"
    return rows


def read_recovery(path: Path) -> dict[str, str]:
    """What `recovery.py` has written."""
    (case,) = json.loads(path.read_text(encoding="utf-8"))["cases"]
    runs = [run for run in case["runs"] if run is not None]
    if not runs:
        return {}
    parts = {part: statistics.median(run[part] for run in runs) * 1e3 for part in ("shrink", "ready", "full size")}
    lost = sum(run["steps lost"] for run in runs)
    text = (
        f"kill -9 of one of {case['size']} to the others' next step {parts['shrink']:.0f} ms; replacement ready after "
        f"{parts['ready']:.0f} ms, trains after {parts['full size']:.0f} ms; {lost:.0f} steps lost in {len(runs)} runs"
    )
    return {"recovery": text}
