"""The package as it is installed from its wheel, in places where a checkout never is."""

import os
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.documentation import README, ROOT, TUTORIAL, find_blocks, find_commands, is_for_one_host, read
from tests.lab.requirements import do_without
from tests.system.launcher import Launcher

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
    """A virtual environment under a path with blanks, with what pip installs for the wheel, and nothing else."""
    with TemporaryDirectory(prefix="hvd with blanks ") as folder:
        home = Path(folder, "virtual environment")
        venv.create(home, with_pip=True)
        fetch("the packages that build the wheel", sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
        (wheel,) = Path(folder).glob("*.whl")
        pip = (home / "bin" / "python", "-m", "pip", "install", "-c", ROOT / "constraints.txt")
        fetch("the packages that the wheel needs", *pip, f"{wheel}[torch]", cwd=folder)
        yield home


def fetch(what: str, *command: str | Path, cwd: str) -> None:
    """Run a command that needs an index; do without where it fails."""
    done = subprocess.run(command, cwd=cwd, env=bare(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        do_without(f"{what} cannot be had here: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


def bare() -> dict[str, str]:
    """The environment without what leads Python to other packages."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


def run(
    hvdrun: Launcher, home: Path, directory: Path, *words: str, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run the job of a command line from this directory."""
    environment = hvdrun.environment() | {"PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return subprocess.run(
        [home / "bin" / "hvdrun", *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def train(hvdrun: Launcher, home: Path, directory: Path, **variables: str | None) -> list[str]:
    """Train with two workers from this directory; what they printed, without marks."""
    script = hvdrun.write("train it.py", TRAINS)
    done = run(hvdrun, home, directory, "-np", "2", "python", str(script), **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition("] ")[2] for line in done.stdout.splitlines()]


def test_it_runs_from_any_folder_under_paths_with_blanks(hvdrun: Launcher, home: Path) -> None:
    (hvdrun.watch.temporary.parent / "a b").mkdir()
    temporary = hvdrun.watch.temporary.parent / "a b"
    for line in train(hvdrun, home, hvdrun.directory, TMPDIR=str(temporary)):
        total, file = line.split(" ", maxsplit=1)
        assert total == "2"
        assert Path(file).is_relative_to(home)
    assert list(temporary.iterdir()) == []


def test_it_runs_where_nothing_can_be_written(hvdrun: Launcher, home: Path) -> None:
    assert len(train(hvdrun, home, Path("/proc/sys"))) == 2


@pytest.mark.parametrize("folder", [None, "/nonexistent"])
def test_it_runs_for_a_user_without_a_home(hvdrun: Launcher, home: Path, folder: str | None) -> None:
    assert len(train(hvdrun, home, hvdrun.directory, HOME=folder, USER=None, LOGNAME=None)) == 2


def test_the_commands_of_the_readme_run(hvdrun: Launcher, home: Path) -> None:
    (script,) = (block for block in find_blocks(read([TUTORIAL]), "python") if "# 5." in block)
    hvdrun.write("train.py", script)
    commands = [command for command in find_commands([README]) if is_for_one_host(command)]
    assert len(commands) >= 2
    for command in commands:
        done = run(hvdrun, home, hvdrun.directory, *shlex.split(command))
        assert (done.returncode, done.stderr) == (0, ""), command
