"""The one table of options: the parser, --help, what is said of mistyped flags and the README's table come from it.

`python -m hvdrun.options --readme README.md` writes the README's table.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from hvdrun.errors import BadValueError
from hvdrun.jobspec import DEFAULT_GRACE_SECONDS, DEFAULT_LEASE_SECONDS, DEFAULT_START_TIMEOUT_SECONDS

MAX_WORKERS = 1_000_000  # a mistyped number must not fill the memory with slots
MAX_DURATION_SECONDS = 366 * 24 * 3600.0  # timers of the operating system overflow far beyond

README_START = "<!-- options -->"
README_END = "<!-- /options -->"

_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<unit>ms|s|m|h)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class Group(StrEnum):
    """Under which heading an option stands."""

    WORKERS = "Workers"
    HOSTS = "Hosts"
    OUTPUT = "Input and output"
    TIME = "Time limits (30, 30s, 2m, 1.5h, 500ms)"
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    flags: all spellings, the one to show first.
    dest: the name of its value.
    parse: reads its text, raising ValueError when it cannot; None for a switch, which takes no value.
    wanted: what a value must be, for errors, in words that follow "takes".
    default: as it would be typed; None when there is none.
    environment: a variable that stands for the option where it is not given.
    acts: whether it is done at once, whatever else is asked for (--help).
    """

    flags: tuple[str, ...]
    dest: str
    group: Group
    help: str
    parse: Callable[[str], object] | None = None
    metavar: str = ""
    wanted: str = ""
    default: str | None = None
    environment: str | None = None
    acts: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a word follows the flag."""
        return self.parse is not None

    def read(self, text: str, source: str) -> object:
        """Read the option's value.

        Raises:
            BadValueError: it cannot be read; `source` says where it came from.
        """
        if self.parse is None:
            raise TypeError(f"{self.flags[0]} takes no value")
        try:
            return self.parse(text)
        except ValueError as error:
            raise BadValueError(source, self.wanted, text) from error


def parse_count(text: str) -> int:
    """Read a whole number from 1 to MAX_WORKERS.

    Raises:
        ValueError: it is none.
    """
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_WORKERS):
        raise ValueError(text)
    return int(text)


def parse_rank(text: str) -> int:
    """Read a whole number from 0 to MAX_WORKERS.

    Raises:
        ValueError: it is none.
    """
    return 0 if text == "0" else parse_count(text)


def parse_duration(text: str) -> float:
    """Read `30`, `30s`, `2m`, `1.5h` or `500ms` as seconds.

    Raises:
        ValueError: it is no duration, or longer than a year.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    seconds = float(match["number"]) * _SECONDS[match["unit"]]
    if seconds > MAX_DURATION_SECONDS:
        raise ValueError(text)
    return seconds


def parse_limit(text: str) -> float:
    """Read a duration longer than 0, as seconds.

    Raises:
        ValueError: it is none.
    """
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


OPTIONS = (
    Option(
        flags=("-np", "--num-proc", "-n"),
        dest="size",
        group=Group.WORKERS,
        help="How many workers to start.",
        parse=parse_count,
        metavar="N",
        wanted=f"a number of workers from 1 to {MAX_WORKERS}, as in -np 2",
    ),
    Option(
        flags=("-H", "--hosts", "-host", "--host"),
        dest="hosts",
        group=Group.HOSTS,
        help="Where to start them: hosts with their slots, filled in this order. A bare name is one slot, a host "
        "named twice adds up, an IPv6 address stands in brackets: [2001:db8::1]:4. Without it: localhost, N slots.",
        parse=str,
        metavar="A:4,B:4",
        wanted="hosts, as in -H server1:4,server2:4",
    ),
    Option(
        flags=("--hostfile", "-hostfile", "-machinefile", "--machinefile"),
        dest="hostfile",
        group=Group.HOSTS,
        help="The same from a file, one host a line: server1 slots=4, server1:4 or server1.",
        parse=Path,
        metavar="FILE",
        wanted="the name of a file, as in --hostfile hosts.txt",
    ),
    Option(
        flags=("--start-timeout",),
        dest="start_timeout_seconds",
        group=Group.TIME,
        help="How long the job may take until all workers have joined.",
        parse=parse_limit,
        metavar="TIME",
        wanted="a time longer than 0, as in --start-timeout 2m",
        default=f"{DEFAULT_START_TIMEOUT_SECONDS:g}s",
        environment="HOROVOD_START_TIMEOUT",
    ),
    Option(
        flags=("--grace",),
        dest="grace_seconds",
        group=Group.TIME,
        help="How long a worker has between SIGTERM and SIGKILL when the job ends early.",
        parse=parse_duration,
        metavar="TIME",
        wanted="a time, as in --grace 5s",
        default=f"{DEFAULT_GRACE_SECONDS:g}s",
    ),
    Option(
        flags=("--lease",),
        dest="lease_seconds",
        group=Group.TIME,
        help="How long a host may be silent before it counts as lost.",
        parse=parse_limit,
        metavar="TIME",
        wanted="a time longer than 0, as in --lease 30s",
        default=f"{DEFAULT_LEASE_SECONDS:g}s",
    ),
    Option(
        flags=("--stdin", "-stdin"),
        dest="stdin_rank",
        group=Group.OUTPUT,
        help="Let the worker of this rank read hvdrun's standard input (a pipe, a file, a debugger's commands); the "
        "others have none.",
        parse=parse_rank,
        metavar="RANK",
        wanted="the rank of one worker, as in --stdin 0",
    ),
    Option(
        flags=("--no-prefix",),
        dest="no_prefix",
        group=Group.OUTPUT,
        help="Show the workers' lines without [rank] before each.",
    ),
    Option(
        flags=("--prefix-output-with-timestamp", "-prefix-timestamp"),
        dest="marks_times",
        group=Group.OUTPUT,
        help="Show before each line when it came, in local time.",
    ),
    Option(
        flags=("--no-prefork",),
        dest="no_prefork",
        group=Group.WORKERS,
        help="Execute every worker, instead of forking Python workers from a process that has imported torch.",
    ),
    Option(
        flags=("-v", "--verbose"),
        dest="verbose",
        group=Group.OTHER,
        help="Say what hvdrun itself does.",
    ),
    Option(flags=("--dry-run",), dest="dry_run", group=Group.OTHER, help="Start nothing, and show what would be."),
    Option(flags=("--version",), dest="version", group=Group.OTHER, help="Print hvdrun's version.", acts=True),
    Option(flags=("-h", "--help"), dest="help", group=Group.OTHER, help="Print this page.", acts=True),
)
BY_FLAG: Mapping[str, Option] = {flag: option for option in OPTIONS for flag in option.flags}

Action = Callable[[click.Context, click.Parameter, object], None]


def make_click_options(actions: Mapping[str, Action]) -> list[click.Parameter]:
    """The table as click wants it. Values stay text: `Option.read` makes errors that know where a value came from.

    Args:
        actions: by dest, what to do for the options that act at once.
    """
    return [
        click.Option(
            [*option.flags, option.dest],
            is_flag=None if option.takes_value else True,  # False would let click take a value for optional
            type=click.UNPROCESSED if option.takes_value else None,
            envvar=option.environment,
            expose_value=not option.acts,
            callback=actions[option.dest] if option.acts else None,
        )
        for option in OPTIONS
    ]


def describe_options() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """For each group its heading, and its options' spellings and meanings, for --help."""
    for group in Group:
        yield group.value, [(_spell(option), _explain(option)) for option in OPTIONS if option.group is group]


def _spell(option: Option) -> str:
    return f"{', '.join(option.flags)} {option.metavar}".rstrip()


def _explain(option: Option) -> str:
    default = f" Default {option.default}" if option.default else ""
    variable = f", or ${option.environment}" if option.environment else ""
    return f"{option.help}{default}{variable}{'.' if default else ''}"


def readme_table() -> str:
    """The README's table of options, in Markdown."""
    lines = ["| option | meaning | default | environment |", "|---|---|---|---|"]
    for option in OPTIONS:
        first, *others = option.flags
        spellings = ", ".join([f"`{f'{first} {option.metavar}'.rstrip()}`", *(f"`{flag}`" for flag in others)])
        variable = f"`{option.environment}`" if option.environment else ""
        lines.append(f"| {spellings} | {option.help} | {option.default or ''} | {variable} |")
    return "\n".join(lines) + "\n"


def replace_readme_table(readme: str) -> str:
    """The README with the table between its markers made anew.

    Raises:
        ValueError: the markers are not there, once and in order.
    """
    before, start, rest = readme.partition(README_START)
    _, end, after = rest.partition(README_END)
    if not start or not end:
        raise ValueError(f"the markers {README_START} and {README_END} are missing")
    return f"{before}{start}\n{readme_table()}{end}{after}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--readme", name]:
            path = Path(name)
            path.write_text(replace_readme_table(path.read_text()))
        case _:
            sys.exit("usage: python -m hvdrun.options --readme README.md")
