"""The package as it is installed from its wheel, in places where a checkout never is."""

import os
import shlex
import shutil
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
from tests.system.scripts import JOIN

pytestmark = pytest.mark.nightly

TRAINS = """
import hvdrun, os, sys
import torch
import worker_runtime.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
sys.stdout.write(f"{int(total)} {hvdrun.__file__}\\n")
"""
JOINS = f"""{JOIN}
print("rank", os.environ["RANK"], "of", join().assignment.size, *sys.version_info[:2], flush=True)
"""


def find_python(version: str) -> str | None:
    """The Python of this version, if this machine has one on PATH or installed by pyenv."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    candidates = filter(None, (shutil.which(f"python{version}"), *map(str, of_pyenv)))
    return next(filter(can_make_environments, candidates), None)


def can_make_environments(python: str) -> bool:
    """Whether this Python starts, and has venv."""
    return subprocess.run([python, "-m", "venv", "--help"], capture_output=True, check=False).returncode == 0


def build(folder: Path, source: Path = ROOT) -> dict[str, Path]:
    """Build the wheel and the source archive there; their paths by suffix."""
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
    environment = bare() | {"SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A virtual environment under a path with blanks, with what pip installs for the wheel, and nothing else."""
    with TemporaryDirectory(prefix="hvd with blanks ") as folder:
        home = Path(folder, "virtual environment")
        venv.create(home, with_pip=True)
        wheel = build(Path(folder, "dist"))[".whl"]
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


def test_an_installed_hvdrun_runs_from_any_folder_under_paths_with_blanks(hvdrun: Launcher, home: Path) -> None:
    (hvdrun.watch.temporary.parent / "a b").mkdir()
    temporary = hvdrun.watch.temporary.parent / "a b"
    for line in train(hvdrun, home, hvdrun.directory, TMPDIR=str(temporary)):
        total, file = line.split(" ", maxsplit=1)
        assert total == "2"
        assert Path(file).is_relative_to(home)
    assert list(temporary.iterdir()) == []


def test_an_installed_hvdrun_runs_where_nothing_can_be_written(hvdrun: Launcher, home: Path) -> None:
    assert len(train(hvdrun, home, Path("/proc/sys"))) == 2


@pytest.mark.parametrize("folder", [None, "/nonexistent"])
def test_an_installed_hvdrun_runs_for_a_user_without_a_home(hvdrun: Launcher, home: Path, folder: str | None) -> None:
    assert len(train(hvdrun, home, hvdrun.directory, HOME=folder, USER=None, LOGNAME=None)) == 2


def test_the_commands_of_the_readme_run(hvdrun: Launcher, home: Path) -> None:
    (script,) = (block for block in find_blocks(read([TUTORIAL]), "python") if "# 5." in block)
    hvdrun.write("train.py", script)
    commands = [command for command in find_commands([README]) if is_for_one_host(command)]
    assert len(commands) >= 2
    for command in commands:
        done = run(hvdrun, home, hvdrun.directory, *shlex.split(command))
        assert (done.returncode, done.stderr) == (0, ""), command


def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    """The second is built from a copy, whose files have other times, and permissions of a stricter umask."""
    skipped = shutil.ignore_patterns(".venv", ".git", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    copy = Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=skipped, copy_function=shutil.copy))
    for path in copy.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    first, second = build(tmp_path / "first"), build(tmp_path / "second", copy)
    assert first.keys() == second.keys() == {".whl", ".gz"}
    for suffix in first:
        assert first[suffix].read_bytes() == second[suffix].read_bytes(), suffix


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_alone_starts_a_job_in_an_empty_environment(hvdrun: Launcher, tmp_path: Path, version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    wheel = build(tmp_path / "dist")[".whl"]
    home = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", home], check=True, capture_output=True)
    pip = (home / "bin" / "python", "-m", "pip", "install", "-c", ROOT / "constraints.txt")
    fetch(f"the packages that the wheel needs in Python {version}", *pip, wheel, cwd=str(tmp_path))
    hvdrun.write("join.py", JOINS)
    done = run(hvdrun, home, hvdrun.directory, "-np", "2", "python", "join.py")
    assert (done.returncode, done.stderr) == (0, "")
    what = f"of 2 {version.replace('.', ' ')}"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} {what}" for rank in range(2)]
