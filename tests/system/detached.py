"""Detached jobs, and the programs that find them, as a test uses them."""

import re
import sys

from tests.system.launcher import Finished, Launcher


def detach(hvdrun: Launcher, *words: str, environment: dict[str, str] | None = None) -> str:
    """Start a job; its name."""
    started = hvdrun("--detach", *words, environment=environment)
    assert (started.returncode, started.stderr) == (0, "")
    assert re.fullmatch("[0-9a-f]{14}\n|[0-9a-f]{16}\n", started.stdout)
    return started.stdout.strip()


def ask(hvdrun: Launcher, *words: str) -> Finished:
    """Run `hvdrun ps` or another program about jobs."""
    return hvdrun.start_words([sys.executable, "-m", "hvdrun", *words]).wait()
