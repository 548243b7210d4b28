"""A Python environment with packages that the tests' own does not have."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

IMPORTS_SECONDS = 250.0  # ends what hangs; a busy machine imports transformers for half a minute at each start


def make_environment(folder: Path, *requirements: str) -> str:
    """The PATH whose `python` has these packages and the tests' own; the test is skipped where they cannot be had."""
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    own = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"  # with its .pth files: hvdrun is in one
    (site / "own.pth").write_text(own, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    install = [*pip, "install", "--quiet", "--no-compile", *requirements]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=200, check=False)
    if installed.returncode != 0:
        pytest.skip(f"{', '.join(requirements)} cannot be installed here: {installed.stderr.splitlines()[-1]}")
    return f"{folder / 'bin'}:{os.environ['PATH']}"
