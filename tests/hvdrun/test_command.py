"""The user's command is looked for before anything starts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.command import (
    Surroundings,
    choose_agent_interpreter,
    find_script,
    is_plain_python,
    pin_python,
    resolve_command,
)
from hvdrun.errors import CommandNotExecutableError, CommandNotFoundError, ScriptNotFoundError

INTERPRETER = "/opt/own/python3.11"


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    """A working directory, and a PATH of two directories beside it, the second one with a program."""
    for name in ("work", "first", "second"):
        (tmp_path / name).mkdir()
    make_file(tmp_path / "second" / "program", 0o755)
    return Surroundings(tmp_path / "work", f"{tmp_path}/first:{tmp_path}/second", INTERPRETER)


def make_file(path: Path, mode: int) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)


def test_a_program_on_path_is_left_as_it_was_typed(around: Surroundings) -> None:
    assert resolve_command(("program", "-v", ""), around) == ("program", "-v", "")


def test_a_program_that_is_nowhere_is_refused_with_the_places(around: Surroundings) -> None:
    with pytest.raises(
        CommandNotFoundError, match=r"'progam' was not found: looked in .*/first, .*/second\.$"
    ) as caught:
        resolve_command(("progam",), around)
    assert len(caught.value.places) == 2


def test_without_a_path_the_system_s_own_is_searched(tmp_path: Path) -> None:
    assert resolve_command(("sh",), Surroundings(tmp_path, None, INTERPRETER)) == ("sh",)
    with pytest.raises(CommandNotFoundError, match="PATH is empty"):
        resolve_command(("sh",), Surroundings(tmp_path, "", INTERPRETER))


def test_an_empty_place_on_path_is_the_working_directory(around: Surroundings) -> None:
    make_file(around.directory / "local", 0o755)
    assert resolve_command(("local",), Surroundings(around.directory, "/nowhere:", INTERPRETER)) == ("local",)


def test_a_later_executable_wins_over_an_earlier_file_that_is_none(around: Surroundings) -> None:
    make_file(around.directory.parent / "first" / "program", 0o644)
    assert resolve_command(("program",), around) == ("program",)


def test_a_file_on_path_that_may_not_be_executed_is_named(around: Surroundings) -> None:
    make_file(around.directory.parent / "first" / "data", 0o644)
    with pytest.raises(CommandNotExecutableError, match="first/data"):
        resolve_command(("data",), around)


def test_a_directory_on_path_is_no_program(around: Surroundings) -> None:
    (around.directory.parent / "first" / "folder").mkdir()
    with pytest.raises(CommandNotFoundError):
        resolve_command(("folder",), around)


def test_a_path_is_taken_from_the_working_directory(around: Surroundings) -> None:
    make_file(around.directory / "start.sh", 0o755)
    assert resolve_command(("./start.sh",), around) == ("./start.sh",)


@pytest.mark.parametrize("name", ["./nothing", "/nowhere/at/all", "/etc/passwd/x"])
def test_a_path_that_does_not_exist_is_not_found(name: str, around: Surroundings) -> None:
    with pytest.raises(CommandNotFoundError, match="looked in /"):
        resolve_command((name,), around)


def test_a_directory_is_not_executable(around: Surroundings) -> None:
    with pytest.raises(CommandNotExecutableError, match="it is a directory"):
        resolve_command((str(around.directory),), around)


def test_a_path_that_loops_is_not_executable(around: Surroundings) -> None:
    (around.directory / "loop").symlink_to("loop")
    with pytest.raises(CommandNotExecutableError, match="symbolic links"):
        resolve_command(("./loop",), around)


def test_a_script_without_permission_gets_the_interpreter_suggested(around: Surroundings) -> None:
    make_file(around.directory / "train.py", 0o644)
    with pytest.raises(CommandNotExecutableError, match=r"did you mean python \./train\.py\?"):
        resolve_command(("./train.py",), around)


def test_a_bare_script_gets_the_interpreter_suggested(around: Surroundings) -> None:
    make_file(around.directory / "train.py", 0o644)
    with pytest.raises(CommandNotFoundError, match=r"did you mean python train\.py\?"):
        resolve_command(("train.py",), around)


def test_a_bare_local_program_gets_its_path_suggested(around: Surroundings) -> None:
    make_file(around.directory / "start.sh", 0o755)
    with pytest.raises(CommandNotFoundError, match=r"did you mean \./start\.sh\?"):
        resolve_command(("start.sh",), around)


@pytest.mark.parametrize("name", ["python", "python3"])
def test_where_path_has_no_python_hvdruns_own_is_used(name: str, around: Surroundings) -> None:
    assert resolve_command((name, "-c", "1"), around) == (INTERPRETER, "-c", "1")


def test_where_path_has_a_python_it_is_used(around: Surroundings) -> None:
    make_file(around.directory.parent / "second" / "python", 0o755)
    assert resolve_command(("python", "-c", "1"), around) == ("python", "-c", "1")


def test_a_bare_python_gets_the_path_that_it_has_here(around: Surroundings) -> None:
    path = around.directory.parent / "second" / "python3"
    make_file(path, 0o755)
    assert pin_python(("python3", "-c", "1"), around) == (str(path), "-c", "1")
    assert pin_python(("python", "-c", "1"), around) == (INTERPRETER, "-c", "1")


def test_the_path_of_a_python_in_a_virtual_environment_is_not_followed_out_of_it(around: Surroundings) -> None:
    link = around.directory.parent / "first" / "python"
    link.symlink_to(sys.executable)
    assert pin_python(("python",), around) == (str(link),)


def test_a_python_on_a_relative_path_is_found_from_the_working_directory(around: Surroundings) -> None:
    (around.directory / "bin").mkdir()
    make_file(around.directory / "bin" / "python", 0o755)
    assert pin_python(("python",), replace(around, search_path="bin")) == (f"{around.directory}/bin/python",)


@pytest.mark.parametrize("command", [("python3.8", "x"), ("./python", "x"), ("/usr/bin/python", "x"), ("no-such", "x")])
def test_what_is_no_bare_python_stays_as_it_was_typed(command: tuple[str, ...], around: Surroundings) -> None:
    assert not is_plain_python(command)
    assert pin_python(command, around) == command


def test_where_nothing_stands_for_a_python_it_is_not_found(around: Surroundings) -> None:
    with pytest.raises(CommandNotFoundError):
        pin_python(("python",), replace(around, interpreter=""))


@pytest.mark.parametrize(
    ("command", "remote_python", "interpreter"),
    [
        (("python", "x.py"), None, INTERPRETER),
        (("python", "x.py"), "/there/python", "/there/python"),
        (("sh", "-c", "1"), "/there/python", "/there/python"),
        (("sh", "-c", "1"), None, INTERPRETER),
        (("/opt/conda/bin/python3.12", "x.py"), None, "/opt/conda/bin/python3.12"),
        (("./python", "x.py"), None, INTERPRETER),
        (("python3.8", "x.py"), None, INTERPRETER),
    ],
)
def test_agents_are_started_with_the_commands_own_python_where_it_has_one(
    command: tuple[str, ...], remote_python: str | None, interpreter: str, around: Surroundings
) -> None:
    assert choose_agent_interpreter(command, around, remote_python) == interpreter


def test_agents_are_started_with_the_python_on_path(around: Surroundings) -> None:
    for name in ("python", "python3.8"):
        path = around.directory.parent / "second" / name
        make_file(path, 0o755)
        assert choose_agent_interpreter((name, "x.py"), around, None) == str(path)


def test_another_python_than_plain_is_not_replaced(around: Surroundings) -> None:
    with pytest.raises(CommandNotFoundError):
        resolve_command(("python3.8", "-c", "1"), around)


def test_a_script_that_python_would_not_find_is_refused(around: Surroundings) -> None:
    with pytest.raises(ScriptNotFoundError, match=r"'missing\.py' .* does not exist in '.*/work'"):
        resolve_command(("python", "-u", "missing.py"), around)


def test_a_script_in_the_working_directory_is_found(around: Surroundings) -> None:
    make_file(around.directory / "train.py", 0o644)
    assert resolve_command(("python", "train.py"), around) == (INTERPRETER, "train.py")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("/usr/bin/python3.11 train.py", "train.py"),
        ("python -u -W ignore -X dev train.py", "train.py"),
        ("python -uWignore -Xdev train.py", "train.py"),
        ("python -uW ignore train.py", "train.py"),
        ("python --check-hash-based-pycs always train.py", "train.py"),
        ("python -- train.py", "train.py"),
        ("python -m package missing.py", None),
        ("python -um package", None),
        ("python -c code missing.py", None),
        ("python -ccode missing.py", None),
        ("python -V", None),
        ("python --version missing.py", None),
        ("python - missing.py", None),
        ("python", None),
        ("python --", None),
        ("pythonic missing.py", None),
        ("sh missing.py", None),
    ],
)
def test_the_script_is_found_behind_pythons_own_options(command: str, script: str | None) -> None:
    assert find_script(tuple(command.split())) == script
