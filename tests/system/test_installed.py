"""The package as it is installed from its wheel, in places where a checkout never is."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.system.launcher import Launcher

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.nightly

TRAINS = """
import hvdrun, os, sys
import torch
import worker_runtime.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
sys.stdout.write(f"{int(total)} {hvdrun.__file__}\\n")
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A virtual environment under a path with blanks, with the wheel and the tests' own dependencies in it."""
    with TemporaryDirectory(prefix="hvd with blanks ") as folder:
        home = Path(folder, "virtual environment")
        venv.create(home, with_pip=True)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        pip = [str(home / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
        (site,) = home.glob("lib/python*/site-packages")
        # A folder named in a .pth file is searched, but its own .pth files, the editable install's too, do not count.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        yield home


def run(hvdrun: Launcher, home: Path, directory: Path, **variables: str | None) -> list[str]:
    """Train with two workers from this directory; what they printed, without marks."""
    script = hvdrun.write("train it.py", TRAINS)
    environment = hvdrun.environment() | {"PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    done = subprocess.run(
        [home / "bin" / "hvdrun", "-np", "2", "python", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition("] ")[2] for line in done.stdout.splitlines()]


def test_it_runs_from_any_folder_under_paths_with_blanks(hvdrun: Launcher, home: Path) -> None:
    (hvdrun.watch.temporary.parent / "a b").mkdir()
    temporary = hvdrun.watch.temporary.parent / "a b"
    for line in run(hvdrun, home, hvdrun.directory, TMPDIR=str(temporary)):
        total, file = line.split(" ", maxsplit=1)
        assert total == "2"
        assert Path(file).is_relative_to(home)
    assert list(temporary.iterdir()) == []


def test_it_runs_where_nothing_can_be_written(hvdrun: Launcher, home: Path) -> None:
    assert len(run(hvdrun, home, Path("/proc/sys"))) == 2


@pytest.mark.parametrize("folder", [None, "/nonexistent"])
def test_it_runs_for_a_user_without_a_home(hvdrun: Launcher, home: Path, folder: str | None) -> None:
    assert len(run(hvdrun, home, hvdrun.directory, HOME=folder, USER=None, LOGNAME=None)) == 2
