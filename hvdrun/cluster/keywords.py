"""The keywords of `hvdrun.run()`: the options of the command line, with _ for -."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hvdrun.cluster.errors import UnknownKeywordError
from hvdrun.cluster.launcher_child import LauncherChild
from hvdrun.cluster.pickling import Unit, collect_modules
from hvdrun.errors import HvdrunError, UsageError
from hvdrun.options.flags import parse
from hvdrun.options.option import Option
from hvdrun.options.request import make_job
from hvdrun.options.table import BY_FLAG, OPTIONS
from hvdrun.processes.accelerators import count_accelerators
from hvdrun.spec.hosts import LOCALHOST, discover_hosts
from hvdrun.spec.jobspec import JobSpec

MODULE = "worker_runtime.tasks"
_DEFAULT_SIZE = 2
# Of no use for a function.
_HIDDEN = frozenset({"detach", "server_timeout_seconds", "dry_run", "stdin_rank", "write_config"})
_DYNAMIC = "DYNAMIC"  # in place of a file of --timeline: the program calls start_timeline()
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][a-z-]*")
_EXAMPLE = re.compile(r"(as in )(--?[A-Za-z][a-z-]*) ('[^']+'|[^\s']+)(?=\.?$|, not )")
_WANTED_ENV = "env takes names and texts, as in env={'NCCL_DEBUG': 'INFO'}"


def list_keywords() -> dict[str, Option]:
    """Each keyword with its option: all spellings of an option with more than one letter."""
    return {
        flag.lstrip("-").replace("-", "_"): option
        for option in OPTIONS
        if not (option.acts or option.dest in _HIDDEN)
        for flag in option.flags
        if len(flag.lstrip("-")) > 1
    }


def make_words(keywords: Mapping[str, object], env: Mapping[str, str] | None = None) -> list[str]:
    """The options of the same command line, without the workers' command.

    Args:
        keywords: by name; None if one is not given.
        env: variables for the workers. Only their names are on the command line, which other users can read.

    Raises:
        TypeError: there is no such keyword, it cannot have such a value, or two keywords are the same option.
    """
    known = list_keywords()
    words: list[str] = []
    seen: dict[str, str] = {}

    for name, value in keywords.items():
        if name not in known:
            if f"--{name.replace('_', '-')}" in BY_FLAG:
                raise UnknownKeywordError(name, "it is for a command, and not for a function.")
            nearest = get_close_matches(name, [*known, "env"], n=1)
            raise UnknownKeywordError(name, f"did you mean {nearest[0]!r}?" if nearest else None)
        if value is None or value is False:
            continue

        option = known[name]
        if seen.setdefault(option.dest, name) != name:
            raise TypeError(f"{seen[option.dest]} and {name} are the same: give only one of them.")
        if not option.takes_value and value is not True:
            raise TypeError(f"{name} takes True or False, not {value!r}.")
        words += _spell(option, value)

    for name in check_variables(env or {}):
        words += ["-x", name]
    return words


def check_variables(env: Mapping[str, str]) -> Mapping[str, str]:
    """The variables for the workers, once they are checked.

    Raises:
        TypeError: they are not names and texts.
    """
    if not isinstance(env, Mapping):
        raise TypeError(f"{_WANTED_ENV}, not a value of type {type(env).__name__}.")
    for name, text in env.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                f"{_WANTED_ENV}: {name!r} is of type {type(name).__name__}, "
                f"and its value of type {type(text).__name__}."
            )
        if not name or "=" in name or "\0" in name + text:
            # The variable's text may be a secret.
            raise TypeError(f"{_WANTED_ENV}: the variable {name!r} cannot be set.")
    return env


def _name_keywords(sentence: str, given: Iterable[str]) -> str:
    """The sentence of an error with keywords in place of the flags: the given ones, or else the first of an option."""
    known = list_keywords()
    names: dict[str, str] = {}
    for name in (*given, *known):
        names.setdefault(known[name].dest, name)
    flags = {flag: names[option.dest] for option in known.values() for flag in option.flags}
    sentence = _EXAMPLE.sub(lambda match: f"{match[1]}{match[2]}={_quote(match[3])}", sentence)
    return _FLAG.sub(lambda match: flags.get(match[0], match[0]), sentence)


def _quote(text: str) -> str:
    """A value as Python has it."""
    if text.isdecimal() or text.startswith("'"):
        return text
    return repr(text)


def _choose_size(values: Mapping[str, Any]) -> int:
    """All slots of the given hosts; else the number of accelerators of this machine; else two."""
    if values["hosts"] is not None or values["hostfile"] is not None:
        listed = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=1)
        return sum(host.slots for host in listed.hosts)
    return max(values["min_size"] or 0, count_accelerators() or _DEFAULT_SIZE)


def _spell(option: Option, value: object) -> Iterator[str]:
    """The words of an option with this value."""
    flag = option.flags[0]
    if not option.takes_value:
        yield flag
        return
    if option.dest == "hosts" and not isinstance(value, str):
        value = ",".join(map(str, value))  # type: ignore[call-overload]  # a list of hosts
    several = option.repeats and isinstance(value, list | tuple)
    if option.words > 1:
        several = several and all(isinstance(one, list | tuple) for one in value)  # type: ignore[attr-defined]  # several
    for one in value if several else (value,):  # type: ignore[attr-defined]  # as several says
        yield flag
        yield from map(str, one if option.words > 1 and isinstance(one, list | tuple) else (one,))


def _refuse_useless(spec: JobSpec) -> None:
    """Refuse what the keywords or a configuration file ask for, and a job of functions cannot be.

    Raises:
        UsageError: they ask for that.
    """
    if spec.limits.elasticity is not None and spec.limits.elasticity.restarts.limit:
        raise UsageError(
            "max_restarts starts all workers again, and a function that they run would lose its results: leave it "
            "out, and call again what has failed."
        )
    for name, is_given in (
        ("detach", spec.display.detach),
        ("dry-run", spec.display.dry_run),
        ("stdin", spec.workers.stdin_rank is not None),
    ):
        if is_given:
            raise UsageError(
                f"{name} in the configuration file is for a command, and not for a function: leave it out, or name "
                "another file."
            )


class Request:
    """A checked request for a job.

    Args:
        given: keywords.
        env: variables for the workers.
        executable: the Python of the workers.

    Raises:
        HvdrunError: the job is impossible.
        TypeError: there is no such keyword.
    """

    def __init__(
        self, given: Mapping[str, object], env: Mapping[str, str] | None = None, executable: str | None = None
    ) -> None:
        words = make_words(given, env)
        typed, _ = parse(words)
        self._command = command = (executable or sys.executable, "-m", MODULE)
        self.environment = {**os.environ, **(env or {})}
        try:
            spec = make_job(typed, command, self.environment, _choose_size)
        except HvdrunError as error:
            error.args = (_name_keywords(str(error), [name for name, value in given.items() if value is not None]),)
            raise
        _refuse_useless(spec)

        # As it is typed: the job looks for it from the folder in which it begins.
        self._output_folder = typed.get("output_folder", spec.display.output_folder)
        self._timeline = spec.workers.timeline
        self.size = spec.workers.size
        self.words = [*([] if "size" in typed else ["-np", str(self.size)]), *words, *command]
        self.is_elastic = spec.is_elastic
        self.grace_seconds = spec.limits.grace_seconds
        self._has_other_hosts = spec.discovers or any(host.name != LOCALHOST for host in spec.workers.hosts)

    def collect_modules(self) -> tuple[Unit, ...]:
        """The program's own modules, if the workers run on other hosts, which may not have them."""
        if self._has_other_hosts:
            return collect_modules()
        return ()

    def start(self, number: int = 1) -> LauncherChild:
        """Start the job; with a higher number it leaves alone the files of those before it."""
        end = len(self.words) - len(self._command)
        words = [*self.words[:end], *self._name_files(number), *self._command]
        return LauncherChild(words, self.environment, self.grace_seconds)

    def _name_files(self, number: int) -> Iterator[str]:
        """The options that name the files of such a job; the last of an option's values counts."""
        if number == 1:
            return
        if self._output_folder is not None:
            yield from ("--output-filename", str(Path(str(self._output_folder)) / f"job.{number}"))
        if self._timeline is not None and self._timeline.upper() != _DYNAMIC:
            path = Path(self._timeline)
            yield from ("--timeline", str(path.with_name(f"{path.stem}.job.{number}{path.suffix}")))
