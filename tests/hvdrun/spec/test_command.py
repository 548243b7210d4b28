"""The user's command is looked for before anything starts."""

import errno
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.errors import CommandNotExecutableError, CommandNotFoundError, ScriptNotFoundError, UsageError
from hvdrun.spec.command import (
    LookupContext,
    choose_agent_interpreter,
    find_directory,
    find_on_path,
    find_script,
    is_plain_python,
    pin_python,
    resolve_command,
)
from tests.strangers import as_stranger

INTERPRETER = "/opt/own/python3.11"


@pytest.fixture
def context(tmp_path: Path) -> LookupContext:
    """A working directory, and a PATH of two directories beside it, the second one with a program."""
    for name in ("work", "first", "second"):
        (tmp_path / name).mkdir()
    make_file(tmp_path / "second" / "program", 0o755)
    return LookupContext(tmp_path / "work", f"{tmp_path}/first:{tmp_path}/second", INTERPRETER)


def make_file(path: Path, mode: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ([], ("program", "-v", "")),
        ([("first/program", 0o644)], ("program",)),  # a later executable wins over an earlier file that is none
        ([("work/start.sh", 0o755)], ("./start.sh",)),
        ([("second/python", 0o755)], ("python", "-c", "1")),
    ],
)
def test_a_program_that_is_found_is_left_as_it_was_typed(
    context: LookupContext, files: list[tuple[str, int]], command: tuple[str, ...]
) -> None:
    for name, mode in files:
        make_file(context.directory.parent / name, mode)
    assert resolve_command(command, context) == command


def test_without_a_path_the_system_s_own_is_searched(tmp_path: Path) -> None:
    assert resolve_command(("sh",), LookupContext(tmp_path, None, INTERPRETER)) == ("sh",)
    with pytest.raises(CommandNotFoundError, match="PATH is empty"):
        resolve_command(("sh",), LookupContext(tmp_path, "", INTERPRETER))


@pytest.mark.parametrize("place", ["closed", "closed/below", "n" * 300, "loop", "file", "file/below", "nowhere"])
def test_a_place_on_path_that_cannot_be_looked_into_is_skipped(context: LookupContext, place: str) -> None:
    room = context.directory.parent
    make_closed_places(room)
    context = replace(context, search_path=f"{room}/{place}:{context.search_path}")
    with as_stranger(room):
        assert find_on_path("program", context) == str(room / "second" / "program")
        assert resolve_command(("program",), context) == ("program",)
        assert find_on_path("python", context) is None


def test_a_command_that_is_nowhere_is_reported_with_the_places_that_are_closed(context: LookupContext) -> None:
    room = context.directory.parent
    make_closed_places(room)
    context = replace(context, search_path=f"{room}/closed:{room}/first")
    with as_stranger(room), pytest.raises(CommandNotFoundError) as caught:
        resolve_command(("missing",), context)
    assert f"looked in {room}/closed (Permission denied), {room}/first." in str(caught.value)


@pytest.mark.parametrize("script", ["{}/closed/train.py", "{}/" + "n" * 300])
def test_a_script_that_cannot_be_looked_at_is_refused(context: LookupContext, script: str) -> None:
    room = context.directory.parent
    make_closed_places(room)
    with as_stranger(room), pytest.raises(ScriptNotFoundError, match=r"cannot be read \((Permission|File name)"):
        resolve_command(("python", script.format(room)), context)


def make_closed_places(room: Path) -> None:
    (room / "closed").mkdir(mode=0)
    (room / "loop").symlink_to("loop")
    (room / "file").write_text("")


def test_an_empty_place_on_path_is_the_working_directory(context: LookupContext) -> None:
    make_file(context.directory / "local", 0o755)
    assert resolve_command(("local",), LookupContext(context.directory, "/nowhere:", INTERPRETER)) == ("local",)


@pytest.mark.parametrize(
    ("files", "program", "error", "said"),
    [
        ([], "progam", CommandNotFoundError, r"'progam' was not found: looked in .*/first, .*/second\.$"),
        ([], "./nothing", CommandNotFoundError, "looked in /"),
        ([], "/nowhere/at/all", CommandNotFoundError, "looked in /"),
        ([], "/etc/passwd/x", CommandNotFoundError, "looked in /"),
        ([], "python3.8", CommandNotFoundError, "looked in /"),
        ([("first/data", 0o644)], "data", CommandNotExecutableError, "first/data"),
        ([("first/folder/x", 0o755)], "folder", CommandNotFoundError, "looked in"),
        ([("work/folder/x", 0o755)], "./folder", CommandNotExecutableError, "it is a directory"),
        ([("work/train.py", 0o644)], "./train.py", CommandNotExecutableError, r"did you mean python \./train\.py\?"),
        ([("work/train.py", 0o644)], "train.py", CommandNotFoundError, r"did you mean python train\.py\?"),
        ([], "train.py", CommandNotFoundError, r"did you mean python train\.py\?"),
        ([("work/train.py", 0o644)], "trainn.py", CommandNotFoundError, r"did you mean python train\.py\?"),
        ([], "python train.py", CommandNotFoundError, r"did you mean python train\.py without the quotes\?"),
        ([("first/prog", 0o755)], "prog -v 'a b'", CommandNotFoundError, r"did you mean prog -v 'a b' without the"),
        ([], "no-program x", CommandNotFoundError, r"/second\.$"),
        ([], "cd /tmp && ls", CommandNotFoundError, r"did you mean sh -c 'cd /tmp && ls'\?"),
        ([], "A=1 python train.py", CommandNotFoundError, r"did you mean sh -c 'A=1 python train\.py'\?"),
        ([], "cd /tmp", CommandNotFoundError, r"did you mean sh -c 'cd /tmp'\?"),
        ([("work/start.sh", 0o755)], "start.sh", CommandNotFoundError, r"did you mean \./start\.sh\?"),
    ],
)
def test_a_program_that_cannot_be_started_is_refused_with_a_hint(
    context: LookupContext, files: list[tuple[str, int]], program: str, error: type[Exception], said: str
) -> None:
    for name, mode in files:
        make_file(context.directory.parent / name, mode)
    with pytest.raises(error, match=said):
        resolve_command((program,), context)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("FOO=1 python train.py", "-x FOO=1 python train.py"),
        ("cd /tmp", "sh -c 'cd /tmp'"),
        ("pyhton train.py", "python train.py"),
        ("phyton3 -m 'a b'", "python3 -m 'a b'"),
        ("perl train.pl", None),
    ],
)
def test_a_command_without_a_program_is_refused_with_what_was_meant(
    context: LookupContext, words: str, meant: str | None
) -> None:
    with pytest.raises(CommandNotFoundError) as caught:
        resolve_command(tuple(shlex.split(words)), context)
    assert str(caught.value).endswith(f"; did you mean {meant}?" if meant else "/second.")


def test_a_path_that_loops_is_not_executable(context: LookupContext) -> None:
    (context.directory / "loop").symlink_to("loop")
    with pytest.raises(CommandNotExecutableError, match="symbolic links"):
        resolve_command(("./loop",), context)


@pytest.mark.parametrize("name", ["python", "python3"])
def test_where_path_has_no_python_hvdruns_own_is_used(name: str, context: LookupContext) -> None:
    assert resolve_command((name, "-c", "1"), context) == (INTERPRETER, "-c", "1")


def test_a_bare_python_gets_the_path_that_it_has_here(context: LookupContext) -> None:
    path = context.directory.parent / "second" / "python3"
    make_file(path, 0o755)
    assert pin_python(("python3", "-c", "1"), context) == (str(path), "-c", "1")
    assert pin_python(("python", "-c", "1"), context) == (INTERPRETER, "-c", "1")


def test_the_path_of_a_python_in_a_virtual_environment_is_not_followed_out_of_it(context: LookupContext) -> None:
    link = context.directory.parent / "first" / "python"
    link.symlink_to(sys.executable)
    assert pin_python(("python",), context) == (str(link),)


def test_a_python_on_a_relative_path_is_found_from_the_working_directory(context: LookupContext) -> None:
    (context.directory / "bin").mkdir()
    make_file(context.directory / "bin" / "python", 0o755)
    assert pin_python(("python",), replace(context, search_path="bin")) == (f"{context.directory}/bin/python",)


@pytest.mark.parametrize("command", [("python3.8", "x"), ("./python", "x"), ("/usr/bin/python", "x"), ("no-such", "x")])
def test_a_command_without_a_bare_python_stays_the_same(command: tuple[str, ...], context: LookupContext) -> None:
    assert not is_plain_python(command)
    assert pin_python(command, context) == command


def test_a_python_that_nothing_replaces_is_not_found(context: LookupContext) -> None:
    with pytest.raises(CommandNotFoundError):
        pin_python(("python",), replace(context, interpreter=""))


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
    command: tuple[str, ...], remote_python: str | None, interpreter: str, context: LookupContext
) -> None:
    assert choose_agent_interpreter(command, context, remote_python) == interpreter


def test_agents_are_started_with_the_python_on_path(context: LookupContext) -> None:
    for name in ("python", "python3.8"):
        path = context.directory.parent / "second" / name
        make_file(path, 0o755)
        assert choose_agent_interpreter((name, "x.py"), context, None) == str(path)


def test_a_script_that_python_would_not_find_is_refused(context: LookupContext) -> None:
    with pytest.raises(ScriptNotFoundError, match=r"'missing\.py' .* does not exist in '.*/work'"):
        resolve_command(("python", "-u", "missing.py"), context)


def test_a_script_that_is_a_link_to_itself_is_called_a_broken_link(context: LookupContext) -> None:
    (context.directory / "loop.py").symlink_to("loop.py")
    with pytest.raises(ScriptNotFoundError, match=r"'loop\.py' .* is a broken link in '.*/work'"):
        resolve_command(("python", "loop.py"), context)


WITH_A_SCRIPT = (
    "python train.py --epochs 3 | /usr/bin/python3.11 train.py | python -u -W ignore -X dev train.py | "
    "python -uWignore -Xdev train.py | python -uW ignore train.py | python --check-hash-based-pycs always train.py | "
    "python -- train.py"
)
WITHOUT = (
    "python -m package missing.py | python -um package | python -c code missing.py | python -ccode missing.py | "
    "python -V | python --version missing.py | python - missing.py | python | python -- | pythonic missing.py | "
    "sh missing.py"
)


@pytest.mark.parametrize("command", [*WITH_A_SCRIPT.split(" | "), *WITHOUT.split(" | ")])
def test_the_script_is_found_behind_pythons_own_options(command: str) -> None:
    assert find_script(tuple(command.split())) == ("train.py" if command in WITH_A_SCRIPT.split(" | ") else None)


def test_the_working_directory_is_called_as_the_shell_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk7").mkdir()
    (tmp_path / "data").symlink_to("disk7")
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.setenv("PWD", str(tmp_path / "data"))
    assert find_directory() == tmp_path / "data"
    for misleading in (str(tmp_path), str(tmp_path / "nowhere"), ".", ""):
        monkeypatch.setenv("PWD", misleading)
        assert find_directory() == (tmp_path / "disk7").resolve()


def test_a_removed_working_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(UsageError, match="was removed"):
        find_directory()


def test_a_working_directory_that_cannot_be_found_is_refused_with_the_systems_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getcwd", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    with pytest.raises(UsageError, match="the working directory cannot be used: Stale file handle; change to another"):
        find_directory()


def test_a_missing_script_gets_the_nearest_name_and_no_folder_where_its_path_is_whole(context: LookupContext) -> None:
    make_file(context.directory / "train.py", 0o644)
    with pytest.raises(ScriptNotFoundError, match=r"does not exist in '.*/work'; did you mean train\.py\?$"):
        resolve_command((sys.executable, "trainn.py"), context)
    with pytest.raises(ScriptNotFoundError, match=r"'/nowhere/x\.py' that Python is to run does not exist\.$"):
        resolve_command((sys.executable, "/nowhere/x.py"), context)
