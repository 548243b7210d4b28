"""Runs a scenario in a process of its own: a Watch reaps, and in the end kills, every child of the process it is in."""

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 30.0


def run_alone(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run an asynchronous function of a test module; its failure is the test's."""
    module = ".".join(Path(scenario.__code__.co_filename).relative_to(ROOT).with_suffix("").parts)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.hvdrun.agent.alone", module, scenario.__name__],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stderr


if __name__ == "__main__":
    asyncio.run(getattr(importlib.import_module(sys.argv[1]), sys.argv[2])())
