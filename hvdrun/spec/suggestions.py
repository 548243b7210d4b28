"""What a mistyped command was meant to be."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

_OF_A_SHELL = re.compile(r"[;&|<>$`()*?~]")
_BUILT_IN = frozenset({".", "cd", "eval", "exec", "export", "module", "set", "source", "ulimit", "umask"})
_FREQUENT = ("python", "python3", "bash")
_LIKENESS = 0.8  # two letters that have changed places


def suggest_interpreter(name: str) -> str | None:
    """Python, for a script that was given as a program."""
    if name.endswith(".py"):
        return f"python {name}"
    return None


def suggest_similar(name: str, directory: Path) -> str | None:
    """The file of a similar name in the same folder; None if there is none."""
    folder, _, last = name.rpartition("/")
    try:
        names = os.listdir(directory / folder if folder else directory)  # noqa: PTH208 - names alone
    except OSError:
        return None
    nearest = get_close_matches(last, names, 1)
    if nearest:
        return str(Path(folder, nearest[0]))
    return None


def suggest_command(words: Sequence[str]) -> str | None:
    """For a command whose first word is no program: one with an option, a shell or the right name; None without any."""
    name = words[0]
    if "=" in name:
        return f"-x {shlex.join(words)}"
    if name in _BUILT_IN:
        return f"sh -c {shlex.quote(shlex.join(words))}"
    nearest = get_close_matches(name, _FREQUENT, 1, _LIKENESS)
    return shlex.join([nearest[0], *words[1:]]) if nearest else None


def suggest_words(name: str, is_program: Callable[[str], bool]) -> str | None:
    """For a whole command line in one word: its words, or a shell where it needs one; None for another word."""
    try:
        words = shlex.split(name)
    except ValueError:
        words = name.split()
    if len(words) < 2:  # noqa: PLR2004 - a name alone
        return None
    if words[0] in _BUILT_IN or "=" in words[0] or _OF_A_SHELL.search(name):
        return f"sh -c {shlex.quote(name)}"
    if is_program(words[0]):
        return f"{name} without the quotes"
    return None
