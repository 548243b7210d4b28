"""`python -m hvdrun.shim`, in a virtual environment of its own: what it changes there, and when it refuses."""

import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdrun.shim.__main__ import COMMAND, NAME, install_command
from hvdrun.shim.path import FOLDER
from tests.house.sources import ROOT
from tests.waiting import LIMIT_SECONDS

ASKS = "import horovod; print(horovod.__version__)"
OURS, THEIRS = "0.28.1", "0.19.5"
FOREIGN = {"PYTHONPATH", "HVD_HOROVOD_SHIM"}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    venv.create(tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def site(python: Path) -> Path:
    """The site-packages of this Python, where hvdrun is installed."""
    (folder,) = (python.parent.parent / "lib").glob("python*/site-packages")
    (folder / "hvdrun-itself.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    return folder


@pytest.fixture
def run(python: Path, site: Path) -> Run:
    """`run("--install")`, or any words for that interpreter: exit code, output, error output."""
    assert site.is_dir()

    def run(*words: str) -> tuple[int, str, str]:
        command = [str(python), *(words if "-c" in words else ("-m", "hvdrun.shim", *words))]
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        done = subprocess.run(
            command, cwd="/", env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        return done.returncode, done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]

    return run


def put_horovod(site: Path) -> None:
    """Install another one."""
    (site / "horovod").mkdir()
    (site / "horovod" / "__init__.py").write_text(f"__version__ = '{THEIRS}'\n", encoding="utf-8")


def test_horovod_is_found_when_it_is_installed_and_not_when_it_is_uninstalled(run: Run, site: Path) -> None:
    assert run("--path") == (0, str(FOLDER), "")
    assert run("-c", ASKS)[0] == 1
    code, output, _ = run("--install")
    assert (code, str(site / NAME) in output) == (0, True)
    assert run("-c", ASKS) == (0, OURS, "")
    program = site.parents[2] / "bin" / COMMAND
    assert (program.stat().st_mode & 0o777, str(program) in output) == (0o755, True)
    output = f"`import horovod` means hvdrun's already: {site / NAME} was there; {program} was written."
    assert run("--install") == (0, output, "")

    code, output, _ = run("--uninstall")
    assert (code, "was removed" in output, program.exists()) == (0, True, False)
    assert run("-c", ASKS) == (1, "", "ModuleNotFoundError: No module named 'horovod'")
    assert run("--uninstall") == (0, f"Nothing to do: there is no {site / NAME}.", "")

    install_command(program.parent, force=False)
    assert run("--uninstall") == (0, f"horovodrun is no longer hvdrun's; there was no {site / NAME}.", "")
    assert run("--install")[0] == 0
    put_horovod(site)  # which comes first
    assert run("-c", ASKS) == (0, THEIRS, "")


def test_where_horovod_is_installed_the_installation_refuses_unless_forced(run: Run, site: Path) -> None:
    put_horovod(site)
    code, output, error = run("--install")
    assert (code, output) == (1, "")
    assert error.startswith(f"Horovod itself is installed ({site / 'horovod' / '__init__.py'})")
    assert "--force" in error
    assert not (site / NAME).exists()

    assert run("--install", "--force")[0] == 0
    assert run("-c", ASKS) == (0, OURS, "")
    assert run("--install")[0] == 1
    assert run("--uninstall")[0] == 0
    assert run("-c", ASKS) == (0, THEIRS, "")


def test_another_horovodrun_is_left_alone_unless_forced_and_then_comes_back(run: Run, site: Path) -> None:
    program = site.parents[2] / "bin" / COMMAND
    program.write_text("theirs", encoding="utf-8")
    code, output, error = run("--install")
    assert (code, output, (site / NAME).exists()) == (1, "", False)
    assert error == f"{program} is somebody else's: remove it, or put it aside with --force."
    assert run("--uninstall")[0] == 0
    assert program.read_text(encoding="utf-8") == "theirs"

    assert run("--install", "--force")[0] == run("--install", "--force")[0] == 0
    assert "hvdrun horovodrun" in program.read_text(encoding="utf-8")
    assert run("--uninstall")[0] == 0
    assert program.read_text(encoding="utf-8") == "theirs"


def test_the_program_is_horovodrun(tmp_path: Path) -> None:
    install_command(tmp_path, force=False)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [str(tmp_path / COMMAND), "--version"]
    done = subprocess.run(words, cwd="/", env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{OURS}\n"


def test_a_horovod_that_is_being_worked_on_counts_as_installed(run: Run, site: Path) -> None:
    metadata = site / f"horovod-{THEIRS}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: horovod\nVersion: {THEIRS}\n", encoding="utf-8")
    code, _, error = run("--install")
    assert (code, f"(version {THEIRS})" in error) == (1, True)


@pytest.mark.parametrize("words", [(), ("--install", "--path"), ("--path", "--force"), ("--help-me",)])
def test_wrong_words_are_reported(run: Run, words: tuple[str, ...]) -> None:
    code, output, error = run(*words)
    assert (code, output) == (2, "")
    assert error.startswith("python -m hvdrun.shim: error: ")


@pytest.mark.parametrize("action", ["--install", "--uninstall"])
def test_a_file_that_cannot_be_written_is_reported_in_one_sentence(run: Run, site: Path, action: str) -> None:
    (site / NAME).mkdir()
    code, output, error = run(action)
    assert (code, output) == (1, "")
    assert error == f"{site / NAME} cannot be {'written' if action == '--install' else 'removed'}: Is a directory"
