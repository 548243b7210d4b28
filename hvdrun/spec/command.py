"""Looks for the user's command before anything starts, so that one error reports a mistyped name, and not each worker.

It looks on this machine, for workers that run here. The path of a bare `python` is found here and used on all hosts,
because the PATH of a login over SSH often has another Python.
"""

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdrun.errors import CommandNotExecutableError, CommandNotFoundError, ScriptNotFoundError, UsageError
from hvdrun.spec.suggestions import suggest_command, suggest_interpreter, suggest_similar, suggest_words
from hvdrun.startup.paths import exists, find_closed, is_file

_PYTHON = re.compile(r"python(3(\.\d+)?)?", re.ASCII)
_PLAIN_PYTHON = frozenset({"python", "python3"})
# Options of Python: those with a value in the next word, and those that run no script.
_PYTHON_VALUE_OPTIONS = frozenset({"--check-hash-based-pycs"})
_PYTHON_VALUE_FOLLOWS = re.compile(r"-[^-cmhVWX?]*[WX]")
_PYTHON_ENDERS = re.compile(r"-[^-cmhVWX?]*[cmhV?].*", re.DOTALL)
_STDIN = "-"
_PYTHON_INFORMS = frozenset({"--version", "--help", "--help-all", "--help-env", "--help-xoptions"})


@dataclass(frozen=True, slots=True)
class LookupContext:
    """Where hvdrun looks for a command.

    directory: the workers' working directory.
    search_path: PATH's value; None when it is not set.
    interpreter: hvdrun's own Python; "" when unknown.
    """

    directory: Path
    search_path: str | None
    interpreter: str

    def list_directories(self) -> tuple[str, ...]:
        """The directories in which hvdrun looks for a bare name."""
        path = os.defpath if self.search_path is None else self.search_path
        if path:
            return tuple(dict.fromkeys(directory or "." for directory in path.split(os.pathsep)))
        return ()


def resolve_command(command: tuple[str, ...], context: LookupContext) -> tuple[str, ...]:
    """The command that the workers execute: as given, or with hvdrun's Python if PATH has none.

    Raises:
        CommandNotFoundError: there is no such program.
        CommandNotExecutableError: there is one, but it is a directory or lacks the permission.
        ScriptNotFoundError: the script of a Python command does not exist.
    """
    name = command[0]
    if (suggestion := _suggest_words(name, context)) is not None:
        raise CommandNotFoundError(name, context.list_directories(), suggestion)
    if "/" in name:
        check_executable(name, context)
    elif find_on_path(name, context) is None:
        command = (_own_interpreter(command, context), *command[1:])
    script = find_script(command)
    if script is not None and not exists(path := context.directory / script):
        meant = suggest_similar(script, context.directory)
        raise ScriptNotFoundError(script, context.directory, _explain_absence(path), meant)
    return command


def pin_python(command: tuple[str, ...], context: LookupContext) -> tuple[str, ...]:
    """The command with a path instead of a bare `python`: that on PATH, or else that of hvdrun.

    Raises:
        CommandNotFoundError: PATH has none, and the path of hvdrun's Python is not known.
        CommandNotExecutableError: PATH has one, but it may not be executed.
    """
    if not is_plain_python(command):
        return command
    return (find_on_path(command[0], context) or _own_interpreter(command, context), *command[1:])


def is_plain_python(command: tuple[str, ...]) -> bool:
    """The command starts with a bare `python`."""
    return command[0] in _PLAIN_PYTHON


def choose_agent_interpreter(command: tuple[str, ...], context: LookupContext, remote_python: str | None) -> str:
    """The absolute path of the Python that starts agents on other hosts.

    It is --remote-python; else the Python of the command, which needs hvdrun's packages as the agent does; for another
    program it is hvdrun's Python.

    Raises:
        HvdrunError: see `pin_python`.
    """
    if remote_python is not None:
        return remote_python
    name = pin_python(command, context)[0]
    if _PYTHON.fullmatch(Path(name).name) is None:
        return context.interpreter
    if name.startswith("/"):
        return name
    if "/" in name:
        return context.interpreter
    return find_on_path(name, context) or context.interpreter


def find_script(command: tuple[str, ...]) -> str | None:
    """The script that a `python ...` command runs; None when it runs none (-c, -m, standard input, another program)."""
    if not _is_python(command):
        return None
    found = _find_program(command)
    if found == _STDIN:
        return None
    return found


def reads_program(command: tuple[str, ...]) -> bool:
    """Python reads its program from standard input."""
    return _is_python(command) and _find_program(command) == _STDIN


def _is_python(command: tuple[str, ...]) -> bool:
    return _PYTHON.fullmatch(Path(command[0]).name) is not None


def _find_program(command: tuple[str, ...]) -> str | None:
    """Where Python reads its program: a script, _STDIN, or None for a program on the command line."""
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == "--":
            return next(arguments, _STDIN)
        if argument == _STDIN or not argument.startswith("-"):
            return argument
        if argument in _PYTHON_INFORMS or _PYTHON_ENDERS.fullmatch(argument):
            return None
        if argument in _PYTHON_VALUE_OPTIONS or _PYTHON_VALUE_FOLLOWS.fullmatch(argument):
            next(arguments, None)
    return _STDIN


def check_executable(name: str, context: LookupContext) -> None:
    """Refuse a path that cannot be executed.

    Raises:
        CommandNotFoundError: there is no such file.
        CommandNotExecutableError: it is a directory, lacks the permission, or lies where this user may not look.
    """
    path = context.directory / name
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise CommandNotFoundError(name, (str(path.parent),)) from None
    except OSError as error:
        raise CommandNotExecutableError(str(path), error.strerror or str(error)) from error
    if stat.S_ISDIR(mode):
        raise CommandNotExecutableError(name, "it is a directory")
    if not os.access(path, os.X_OK):
        raise CommandNotExecutableError(name, "you may not execute it", suggest_interpreter(name))


def _own_interpreter(command: tuple[str, ...], context: LookupContext) -> str:
    """The path of hvdrun's Python, for a `python` that PATH does not have.

    Raises:
        CommandNotFoundError: it is another program.
    """
    if command[0] not in _PLAIN_PYTHON or not context.interpreter:
        raise explain_not_found(command, context)
    return context.interpreter


def explain_not_found(command: Sequence[str], context: LookupContext) -> CommandNotFoundError:
    """The error for a command whose first word is a bare name that PATH does not have.

    It has the folders that this user may not look into.
    """
    name = command[0]
    directories = [
        each if (closed := find_closed(context.directory / each / name)) is None else f"{each} ({closed})"
        for each in context.list_directories()
    ]
    suggestion = _suggest_local_file(name, context) or suggest_command(command)
    return CommandNotFoundError(name, directories, suggestion)


def find_on_path(name: str, context: LookupContext) -> str | None:
    """The absolute path of this program on PATH; None if PATH does not have it.

    A folder that this user may not look into is skipped, as execvp does.

    Raises:
        CommandNotExecutableError: PATH has files of that name, but none that can be executed; shells do the same.
    """
    forbidden = None
    for directory in context.list_directories():
        path = context.directory / directory / name
        if not is_file(path):
            continue
        if os.access(path, os.X_OK):
            return str(path)
        forbidden = forbidden or path
    if forbidden is not None:
        raise CommandNotExecutableError(str(forbidden), "you may not execute it", suggest_interpreter(str(forbidden)))
    return None


def _suggest_local_file(name: str, context: LookupContext) -> str | None:
    """A suggestion for a bare name, which is not searched in the working directory."""
    path = context.directory / name
    if name.endswith(".py"):
        similar = None
        if not is_file(path):
            similar = suggest_similar(name, context.directory)
        return suggest_interpreter(similar or name)
    if is_file(path) and os.access(path, os.X_OK):
        return f"./{name}"
    return None


def _suggest_words(name: str, context: LookupContext) -> str | None:
    """A suggestion for a command line that was given as one word; None where there is a file of that name."""
    if not re.search(r"\s", name) or os.path.lexists(context.directory / name):
        return None

    def is_program(word: str) -> bool:
        try:
            return "/" in word or is_plain_python((word,)) or find_on_path(word, context) is not None
        except CommandNotExecutableError:
            return True

    return suggest_words(name, is_program)


def _explain_absence(path: Path) -> str:
    try:
        is_link = stat.S_ISLNK(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_link = False
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "is a broken link" if is_link else "does not exist"


def find_directory() -> Path:
    """The working directory with the name that the user's shell has for it, with its symbolic links.

    Raises:
        UsageError: it was removed, or cannot be used.
    """
    try:
        physical = Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory was removed: change to one that exists.") from error
    except OSError as error:
        raise UsageError(f"the working directory cannot be used: {error.strerror}; change to another.") from error
    named = Path(os.environ.get("PWD", ""))
    with suppress(OSError):  # $PWD names no folder
        if named.is_absolute() and named.samefile(physical):
            return named
    return physical
