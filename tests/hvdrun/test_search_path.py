"""Whose `protos` and `rendezvous` hvdrun's own processes import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PYTHONPATH with packages of our names that cannot even be imported."""
    for name in ("protos", "rendezvous"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("module", ["hvdrun", "hvdrun.agent", "hvdrun.agent.guardian"])
def test_no_program_of_ours_imports_the_user_s_packages(
    environment: dict[str, str], module: str, tmp_path: Path
) -> None:
    arguments = {
        "hvdrun": ["--version"],
        "hvdrun.agent": [],
        "hvdrun.agent.guardian": ["job/host", str(tmp_path / "x")],
    }
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments[module]],
        cwd=environment["PYTHONPATH"],
        env=environment,
        input=b"",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert b"not ours" not in run.stderr
    assert b"Error" not in run.stderr
