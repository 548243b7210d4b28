"""The keywords of `hvdrun.run()`: the options of the command line, with _ for -."""

import os
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from hvdrun.cluster.errors import UnknownKeywordError
from hvdrun.cluster.job import Job
from hvdrun.cluster.pickling import Unit, collect_modules
from hvdrun.options.flags import parse
from hvdrun.options.option import Option
from hvdrun.options.request import choose_allocation, make_job, resolve_request
from hvdrun.options.table import OPTIONS
from hvdrun.processes.accelerators import count_accelerators
from hvdrun.spec.hosts import LOCALHOST, discover_hosts
from hvdrun.spec.jobspec import JobSpec

MODULE = "worker_runtime.tasks"
_DEFAULT_SIZE = 2
_HIDDEN = frozenset({"dry_run", "stdin_rank", "write_config"})  # of no use for a function
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
            nearest = get_close_matches(name, [*known, "env"], n=1)
            raise UnknownKeywordError(name, nearest[0] if nearest else None)
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
        raise TypeError(f"{_WANTED_ENV}, not a {type(env).__name__}.")
    for name, text in env.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"{_WANTED_ENV}: {name!r} is given a {type(text).__name__}.")
        if not name or "=" in name or "\0" in name + text:
            raise TypeError(f"{_WANTED_ENV}: the variable {name!r} cannot be set.")  # its text may be a secret
    return env


def read_job(words: list[str], environment: Mapping[str, str]) -> JobSpec:
    """The job of a command line.

    Raises:
        HvdrunError: the job is impossible.
    """
    typed, command = parse(words)
    return make_job(typed, command, environment, lambda _values: "num_proc=2")


def complete(words: list[str], interpreter: str | None = None) -> list[str]:
    """The words with the command, and with the number of workers, if neither they nor a scheduler give it.

    Raises:
        HvdrunError: the hosts or the scheduler's variables cannot be read.
    """
    command = [interpreter or sys.executable, "-m", MODULE]
    typed, _ = parse([*words, *command])
    resolved, _, _ = resolve_request(typed, os.environ)
    values = resolved.values
    if values["size"] is not None or choose_allocation(values, os.environ) is not None:
        return [*words, *command]
    return ["-np", str(_choose_size(values)), *words, *command]


def _choose_size(values: Mapping[str, object]) -> int:
    """All slots of the given hosts; else the number of accelerators of this machine; else two."""
    least = values["min_size"]
    if values["hosts"] is not None or values["hostfile"] is not None:
        listed = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=1)  # type: ignore[arg-type]  # as parsed
        return sum(host.slots for host in listed.hosts)
    return max(int(str(least or 0)), count_accelerators() or _DEFAULT_SIZE)


def _spell(option: Option, value: object) -> Iterator[str]:
    """The words of an option with this value."""
    flag = option.flags[0]
    if not option.takes_value:
        yield flag
        return
    if option.dest == "hosts" and not isinstance(value, str):
        value = ",".join(map(str, value))  # type: ignore[call-overload]  # a list of hosts
    several = option.repeats and isinstance(value, list | tuple)
    for one in value if several else (value,):  # type: ignore[attr-defined]  # as several says
        yield flag
        yield from map(str, one if option.words > 1 and isinstance(one, list | tuple) else (one,))


class Request:
    """A checked request for a job.

    given: keywords. env: variables for the workers. executable: their Python.

    Raises:
        HvdrunError: the job is impossible.
        TypeError: there is no such keyword.
    """

    def __init__(
        self, given: Mapping[str, object], env: Mapping[str, str] | None = None, executable: str | None = None
    ) -> None:
        self.words = complete(make_words(given, env), executable)
        self.environment = {**os.environ, **(env or {})}
        spec = read_job(self.words, self.environment)
        self.size = spec.workers.size
        self.is_elastic = spec.is_elastic
        self.grace_seconds = spec.limits.grace_seconds
        self._has_other_hosts = spec.discovers or any(host.name != LOCALHOST for host in spec.workers.hosts)

    def collect_modules(self) -> tuple[Unit, ...]:
        """The program's own modules, if the workers run on other hosts, which may not have them."""
        return collect_modules() if self._has_other_hosts else ()

    def start(self) -> Job:
        """Start the job."""
        return Job(self.words, self.environment, self.grace_seconds)
