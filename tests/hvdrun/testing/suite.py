"""Runs pytest on files that a test has written, and reads what it reports."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

LIMIT_SECONDS = 100


@dataclass(frozen=True, slots=True)
class Suite:
    """A run of pytest: its exit code, all it printed, and for each test its outcome and what is said of it."""

    returncode: int
    output: str
    outcomes: dict[str, str]
    texts: dict[str, str]


def run_suite(folder: Path, words: Sequence[str] = ()) -> Suite:
    """Run pytest in a folder."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", f"--junitxml={report}"]
    run = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    output = run.stdout + run.stderr
    outcomes, texts = {}, {}
    for case in ET.parse(report).iter("testcase") if report.exists() else ():  # noqa: S314 - pytest wrote it
        name = case.get("name", "")
        said = [part for part in case if part.tag in {"failure", "error", "skipped"}]
        outcomes[name] = said[0].tag if said else "passed"
        texts[name] = "\n".join("".join(part.itertext()) for part in case)
    return Suite(run.returncode, output, outcomes, texts)
