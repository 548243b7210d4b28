"""Runs the parts of the test run, all of them whatever fails, and tells what each cost: `make test` and `make lint`.

Uses the standard library alone. The one list of parts is below.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(sys.executable).parent
TESTS = "tests"
HOSTS = "hosts"
# The tests of several hosts have shorter time limits, which more than one test beside them would disturb; what they
# wait for is the network, so two at a time take half as long. Their files share nothing, and one takes a third of all.
_HOST_TESTS = ("tests/lab", "tests/system/hosts")
# Two at a time, on any machine: with more, a small one would be too busy for the tests of time limits.
_PARALLEL = ("--numprocesses=2",)
_BY_FILE = "--dist=loadfile"
_BY_TEST = "--dist=worksteal"
_REPORT = ("--durations=15", "--durations-min=1")
# torch looks up, for its log, whose address each connection of a TCPStore has. Where the network loses one question in
# twenty, the resolver's patience (5 s) would cost the tests minutes, and some of them their time limits.
_RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:4"}


@dataclass(frozen=True, slots=True)
class Part:
    """One command; its words stand after the name of a program of this virtual environment."""

    name: str
    command: tuple[str, ...]


PARTS = (
    Part("lint", ("ruff", "check")),
    Part("format", ("ruff", "format", "--check")),
    Part("types", ("mypy",)),
    Part("layers", ("lint-imports",)),
    Part(TESTS, ("pytest", *_PARALLEL, _BY_FILE, *(f"--ignore={path}" for path in _HOST_TESTS), *_REPORT)),
    Part(HOSTS, ("pytest", *_PARALLEL, _BY_TEST, *_HOST_TESTS, *_REPORT)),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a part, or a tier of the tests, took; a tier has no verdict of its own."""

    name: str
    seconds: float
    verdict: str = ""


def run_part(part: Part) -> Iterator[Cost]:
    """Run one part, showing what it prints; the tests' cost is followed by that of their tiers, added up one by one."""
    with tempfile.TemporaryDirectory() as folder:
        costs = Path(folder) / "costs.json"
        more = [f"--costs={costs}"] if part.name in {TESTS, HOSTS} else []
        sys.stdout.write(f"\n--- {part.name}: {' '.join(part.command)}\n")
        sys.stdout.flush()
        began = time.monotonic()
        command = [str(PROGRAMS / part.command[0]), *part.command[1:], *more]
        code = subprocess.run(command, cwd=ROOT, env={**_RESOLVER, **os.environ}, check=False).returncode
        seconds = time.monotonic() - began
        tiers: dict[str, float] = json.loads(costs.read_text(encoding="utf-8")) if costs.exists() else {}
    yield Cost(part.name, seconds, "failed" if code else "ok")
    for name, tier_seconds in tiers.items():
        yield Cost(f"  {name}", tier_seconds)


def main() -> int:
    """Run the parts that are named, or all; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--began", type=float, help="when the set-up began, in seconds since the epoch")
    asked = parser.parse_args()
    unknown = set(asked.parts) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    costs = [] if asked.began is None else [Cost("set-up", time.time() - asked.began, "ok")]
    for part in PARTS:
        if not asked.parts or part.name in asked.parts:
            costs += run_part(part)
    sys.stdout.write("\nwhat each part cost\n")
    for cost in costs:
        sys.stdout.write(f"{cost.name:<16}{cost.seconds:>8.1f} s  {cost.verdict}".rstrip() + "\n")
    return 1 if any(cost.verdict == "failed" for cost in costs) else 0


if __name__ == "__main__":
    sys.exit(main())
