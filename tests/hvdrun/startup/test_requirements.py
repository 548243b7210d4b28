"""Where hvdrun cannot run it says so in one sentence, also in a Python that is too old for everything else."""

import ast

import pytest

from hvdrun.startup.requirements import find_obstacle
from tests.house.sources import ROOT
from tests.hvdrun.interpreter import run_python

OLD = "Python 3.11 or newer is needed, but /bin/python3 is Python 3.9.18: start hvdrun with a newer one."
MACOS = "Linux is needed, but this is macOS: start hvdrun, and its workers, on Linux machines."


@pytest.mark.parametrize(
    ("version", "platform", "sentence"),
    [((3, 11, 0), "linux", ""), ((3, 14, 1), "linux", ""), ((3, 9, 18), "linux", OLD), ((3, 13, 0), "darwin", MACOS)],
)
def test_a_missing_requirement_is_one_sentence(version: tuple[int, ...], platform: str, sentence: str) -> None:
    assert find_obstacle(version, platform, "/bin/python3") == sentence


@pytest.mark.parametrize(("module", "code"), [("hvdrun", 125), ("hvdrun.agent", 1)])
@pytest.mark.parametrize(("name", "value"), [("version_info", "(3, 9, 18)"), ("platform", "'win32'")])
def test_each_program_reports_the_obstacle(module: str, code: int, name: str, value: str) -> None:
    program = f"import sys\nfrom {module}.__main__ import main\nsys.{name} = {value}\nsys.exit(main())"
    run = run_python("-c", program)
    assert (run.returncode, run.stdout, len(run.stderr.splitlines())) == (code, "", 1), run.stderr
    assert " is needed, but " in run.stderr


@pytest.mark.parametrize(
    "file",
    ["__init__", "__main__", "version", "startup/__init__", "startup/requirements", "agent/__init__", "agent/__main__"],
)
def test_old_pythons_can_parse_the_report(file: str) -> None:
    tree = ast.parse((ROOT / "hvdrun" / f"{file}.py").read_text(encoding="utf-8"), feature_version=(3, 4))
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}  # of ours, no other file
    assert imported <= {"contextlib", "hvdrun.startup.requirements", "hvdrun.version"}
