"""Programs of ours in a Python of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.house.sources import ROOT
from tests.waiting import LIMIT_SECONDS


def run_python(
    *words: str | Path, around: str = "", cwd: Path = ROOT, stdout: int | IO[bytes] = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and variables to its end.

    around: redirections of a shell, such as `>&-`, in which it runs.
    """
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {around}', "sh", *command] if around else command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        input="",
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
