"""The steps of deploy/ci do what they say: each is run as its service would run it, but for those that install."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT

pytestmark = pytest.mark.nightly

FOLDER = ROOT / "deploy" / "ci"


def read_steps(file: Path) -> list[str]:
    """The commands of a file, in order: GitHub's `run:`, GitLab's items."""
    text = file.read_text()
    if file.stem == "github":
        return re.findall(r"^ +run: (.+)$", text, re.MULTILINE)
    return re.findall(r"^    - (.+)$", text, re.MULTILINE)


def read_variables(file: Path) -> dict[str, str]:
    """The variables of a file that its steps use."""
    return dict(re.findall(r"^ +(PYTHON|TRAINING): (.+)$", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_steps_of(name: str) -> None:
    file = FOLDER / f"{name}.yml"
    install, train, test = read_steps(file)
    assert "pip install" in install
    assert set(read_variables(file)) == {"PYTHON", "TRAINING"}
    environment = {**os.environ, **read_variables(file), "CI": "true", "PYTHON": sys.executable}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    for step in (train, test):
        run = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
