"""All options of horovodrun, in its own order, and what each means for hvdrun.

The command line is read as argparse reads Horovod's: long options may be shortened, and a value may follow a short
option in the same word. Unlike argparse, hvdrun does not read the words of the command, which may resemble options.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options import table
from hvdrun.options.kinds import parse_integer
from hvdrun.options.option import Kind, Option, RawValue, RawValues
from hvdrun.options.words import Typed, explain_no_effect, find_remedy, gather, read_words, split_flag

_SHORT_FLAG = 2  # characters of a flag like -p
_MIN_LIKENESS = 0.7  # of difflib, where 1 means equal
_LIST = "hvdrun horovodrun --help lists all options."


@dataclass(frozen=True, slots=True)
class HorovodOption(Option):
    """An option of horovodrun.

    dest: the option of hvdrun whose value it sets; "" for none.
    meaning: returns the value of that option for the words of this one; without it the value is the same.
    reason: why it has no effect, and what replaces it; half a sentence. "" where it has one.
    group: at most one option of a group may be given.
    """

    meaning: Callable[..., RawValue | None] | None = None
    reason: str = ""
    group: str = ""

    def give(self, values: tuple[str, ...]) -> RawValue | None:
        """The value that these words give to the option of hvdrun."""
        return Option.give(self, values) if self.meaning is None else self.meaning(*values)


class Level(StrEnum):
    """The levels of Horovod's log, in their order."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    FATAL = "FATAL"


def parse_decimal(text: str, *, most: float = sys.float_info.max) -> float:
    """Read a number from 0 to `most`.

    Raises:
        ValueError: the text is no such number.
    """
    number = float(text)
    if not 0 <= number <= most:
        raise ValueError(text)
    return number


_INTEGER = Kind(partial(parse_integer, least=0, most=sys.maxsize), "N", "a whole number of at least 0")
_DECIMAL = Kind(parse_decimal, "N", "a number of at least 0")
_SHARE = Kind(partial(parse_decimal, most=1.0), "N", "a number from 0 to 1")
_VERBOSE = frozenset({Level.TRACE, Level.DEBUG, Level.INFO})
_LEVEL = Kind(Level, "LEVEL", "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL")
_TEXT = Kind(str, "VALUE", "a value")

_NO_THREAD = "there is no background thread to tune; gradients are averaged while backward() runs"
_NO_ALGORITHM = "gloo and NCCL choose how they reduce"
_NO_MPI = "there is no MPI underneath, the workers talk through gloo or NCCL"
_NO_TIMELINE = "timelines are not recorded; torch.profiler shows the collectives"
_NO_TIMES = "the runtime's lines carry no time; -prefix-timestamp shows when each line came"
_NO_AFFINITY = "hvdrun --bind-to core, socket or numa binds workers to CPUs"
_STREAMS = "torch chooses the streams of NCCL"
_GLOO_TIMEOUT = "the stall check says which ranks wait, and a lost worker ends a collective"
_JSRUN = "hosts are reached over SSH; -H names them"


def _same(spellings: str, group: str = "") -> HorovodOption:
    """An option that hvdrun has under the same names."""
    own = table.BY_FLAG[spellings.split(maxsplit=1)[0]]
    text = f"As hvdrun's {own.flags[0]}."
    return HorovodOption(spellings, own.dest, text, own.kind, own.words, own.repeats, acts=own.acts, group=group)


def _ignored(spellings: str, reason: str, kind: Kind | None = None, group: str = "") -> HorovodOption:
    """An option without an effect, about which hvdrun prints a line."""
    return HorovodOption(spellings, "", f"No effect: {reason}.", kind, reason=reason, group=group)


def _ignored_pair(name: str, reason: str) -> tuple[HorovodOption, HorovodOption]:
    """`--name` and `--no-name`, without an effect."""
    return _ignored(f"--{name}", reason, group=name), _ignored(f"--no-{name}", reason, group=name)


def _variable(spellings: str, setting: str, kind: Kind | None = None, group: str = "") -> HorovodOption:
    """An option that sets a variable of the workers; `{}` in the setting is the option's value."""
    text = f"Sets {setting.format('VALUE')} for the workers."
    return HorovodOption(spellings, "forwarded", text, kind, repeats=True, meaning=setting.format, group=group)


def _page(spellings: str, dest: str, text: str) -> HorovodOption:
    """An option that prints a page."""
    return HorovodOption(spellings, dest, text, acts=True)


OPTIONS: tuple[HorovodOption, ...] = (
    _page("-v --version", "version", "Print the version of Horovod that hvdrun replaces."),
    _page("-cb --check-build", "check_build", "Print what the workers' Python can do."),
    _page("-h --help", "help", "Print this page."),
    _same("--completion"),
    _same("-np --num-proc"),
    HorovodOption("--disable-cache", "", "Nothing is cached."),
    _same("--start-timeout"),
    _same("--network-interfaces"),
    _same("--network-interface"),
    _same("--output-filename"),
    _same("--verbose"),
    _same("--config-file"),
    _same("-p --ssh-port"),
    _same("-i --ssh-identity-file"),
    _ignored("--fusion-threshold-mb", _NO_THREAD, _INTEGER),
    _ignored("--cycle-time-ms", _NO_THREAD, _DECIMAL),
    _ignored("--cache-capacity", _NO_THREAD, _INTEGER),
    *_ignored_pair("hierarchical-allreduce", _NO_ALGORITHM),
    *_ignored_pair("hierarchical-allgather", _NO_ALGORITHM),
    *_ignored_pair("torus-allreduce", _NO_ALGORITHM),
    *_ignored_pair("autotune", _NO_THREAD),
    _ignored("--autotune-log-file", _NO_THREAD, _TEXT),
    _ignored("--autotune-warmup-samples", _NO_THREAD, _INTEGER),
    _ignored("--autotune-steps-per-sample", _NO_THREAD, _INTEGER),
    _ignored("--autotune-bayes-opt-max-samples", _NO_THREAD, _INTEGER),
    _ignored("--autotune-gaussian-process-noise", _NO_THREAD, _SHARE),
    _same("--min-np --min-num-proc"),
    _same("--max-np --max-num-proc"),
    _same("--slots-per-host"),
    _same("--elastic-timeout"),
    _same("--reset-limit"),
    _same("--blacklist-cooldown-range"),
    _ignored("--timeline-filename", _NO_TIMELINE, _TEXT),
    *_ignored_pair("timeline-mark-cycles", _NO_TIMELINE),
    _variable("--no-stall-check", "HOROVOD_STALL_CHECK_DISABLE=1", group="stall-check"),
    _variable("--stall-check", "HOROVOD_STALL_CHECK_DISABLE=0", group="stall-check"),
    _variable("--stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS={}", _INTEGER),
    _variable("--stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={}", _INTEGER),
    *_ignored_pair("mpi-threads-disable", _NO_MPI),
    _ignored("--mpi-args", _NO_MPI, _TEXT),
    _variable("--tcp", "NCCL_IB_DISABLE=1"),
    _ignored("--binding-args", _NO_AFFINITY, _TEXT),
    _ignored("--num-nccl-streams", _STREAMS, _INTEGER),
    _ignored("--thread-affinity", _NO_AFFINITY, _INTEGER),
    _ignored("--gloo-timeout-seconds", _GLOO_TIMEOUT, _INTEGER),
    HorovodOption(
        "--log-level",
        "verbose",
        "INFO and below mean --verbose.",
        _LEVEL,
        meaning=lambda level: True if level in _VERBOSE else None,
    ),
    _ignored("--log-with-timestamp", _NO_TIMES, group="timestamps"),
    _ignored("--log-without-timestamp", _NO_TIMES, group="timestamps"),
    _ignored("--log-hide-timestamp", _NO_TIMES, group="timestamps"),
    _ignored("--no-log-hide-timestamp", _NO_TIMES, group="timestamps"),
    _same("-prefix-timestamp --prefix-output-with-timestamp", group="timestamps"),
    _same("-H --hosts", group="hosts"),
    _same("-hostfile --hostfile", group="hosts"),
    _same("--host-discovery-script", group="hosts"),
    HorovodOption("--gloo", "", "The workers talk through gloo, and through NCCL for CUDA tensors."),
    _ignored("--mpi", _NO_MPI),
    _ignored("--jsrun", _JSRUN),
)
BY_FLAG: Mapping[str, HorovodOption] = {flag: option for option in OPTIONS for flag in option.flags}


class Translation(NamedTuple):
    """Values for options of hvdrun by dest, and a sentence about each group of options without an effect."""

    given: dict[str, RawValues]
    remarks: list[str]


def parse(words: Sequence[str]) -> tuple[list[Typed], tuple[str, ...]]:
    """Read horovodrun's command line: its options, and the user's command.

    Raises:
        UsageError: an option does not exist, is ambiguous, lacks its value, or excludes another one.
    """
    typed, start = read_words(words, find_option)
    first: dict[str, Typed] = {}
    for each in typed:
        group = BY_FLAG[each.flag].group
        former = first.setdefault(group, each)
        if group and former.option is not each.option:
            raise UsageError(f"{each.flag} and {former.flag} exclude each other: give only one of them.")
    return typed, tuple(words[start:])


def find_option(word: str) -> Typed:
    """Return the option that a word names, with the value that the same word holds.

    Raises:
        UsageError: there is no such option, or several begin so.
    """
    typed = split_flag(word, BY_FLAG)
    if typed is not None:
        return typed
    short = word[:_SHORT_FLAG]
    if short in BY_FLAG and BY_FLAG[short].takes_value and not word.startswith("--"):
        return Typed(BY_FLAG[short], short, (word[_SHORT_FLAG:],))
    flag, equals, value = word.partition("=")
    longer = sorted(known for known in BY_FLAG if known.startswith(flag)) if flag.startswith("--") else []
    if len({BY_FLAG[known].flags for known in longer}) == 1:
        return Typed(BY_FLAG[longer[0]], longer[0], (value,) if equals else ())
    if longer:
        raise UsageError(f"{flag} could be {', '.join(longer[:-1])} or {longer[-1]}: write more of it.")
    remedy = find_remedy(flag)
    nearest = None if remedy else next(iter(get_close_matches(flag, BY_FLAG, 1, _MIN_LIKENESS)), None)
    raise UnknownOptionError(flag, nearest, remedy or _LIST)


def translate(typed: Iterable[Typed]) -> Translation:
    """Turn options of horovodrun into values of hvdrun's options; of several spellings of one the last counts.

    Raises:
        BadValueError: an option does not take such a value.
    """
    with_effect: list[Typed] = []
    flags: dict[str, dict[str, None]] = {}  # by reason; each flag once, in order
    for each in typed:
        option = BY_FLAG[each.flag]
        if option.reason or option.meaning is not None:  # hvdrun reads the values of the others
            for text in each.values:
                option.read(text, each.flag)
        if option.reason:
            flags.setdefault(option.reason, {})[each.flag] = None
        elif option.dest:
            with_effect.append(each)
    return Translation(gather(with_effect), [explain_no_effect(names, reason) for reason, names in flags.items()])
