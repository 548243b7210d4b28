"""All options of horovodrun, in its own order, and what each means for hvdrun."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial

from hvdrun.options import foreign
from hvdrun.options.foreign import (
    DECIMAL,
    INTEGER,
    TEXT,
    ForeignOption,
    Translation,
    ignored,
    page,
    parse_decimal,
    same,
)
from hvdrun.options.option import Kind
from hvdrun.options.words import Typed

_LIST = "hvdrun horovodrun --help lists all options."


class Level(StrEnum):
    """The levels of Horovod's log, in their order."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    FATAL = "FATAL"


_SHARE = Kind(partial(parse_decimal, most=1.0), "N", "a number from 0 to 1")
_VERBOSE = frozenset({Level.TRACE, Level.DEBUG, Level.INFO})
_LEVEL = Kind(Level, "LEVEL", "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL")

_NO_THREAD = "there is no background thread to tune; gradients are averaged while backward() runs"
_NO_ALGORITHM = "gloo and NCCL choose how they reduce"
_NO_MPI = "there is no MPI underneath, the workers talk through gloo or NCCL"
_NO_TIMES = "the runtime's lines carry no time; -prefix-timestamp shows when each line came"
_NO_AFFINITY = "hvdrun --bind-to core, socket or numa binds workers to CPUs"
_STREAMS = "torch chooses the streams of NCCL"
_GLOO_TIMEOUT = "the stall check says which ranks wait, and a lost worker ends a collective"
_JSRUN = "hosts are reached over SSH; -H names them"


def _ignored_pair(name: str, reason: str) -> tuple[ForeignOption, ForeignOption]:
    """`--name` and `--no-name`, without an effect."""
    return ignored(f"--{name}", reason, group=name), ignored(f"--no-{name}", reason, group=name)


def _variable(spellings: str, setting: str, kind: Kind | None = None, group: str = "") -> ForeignOption:
    """An option that sets a variable of the workers; `{}` in the setting is the option's value."""
    text = f"Sets {setting.format('VALUE')} for the workers."
    return ForeignOption(spellings, "forwarded", text, kind, repeats=True, meaning=setting.format, group=group)


OPTIONS: tuple[ForeignOption, ...] = (
    page("-v --version", "version", "Print the version of Horovod that hvdrun replaces."),
    page("-cb --check-build", "check_build", "Print what the workers' Python can do."),
    page("-h --help", "help", "Print this page."),
    same("--completion"),
    same("-np --num-proc"),
    ForeignOption("--disable-cache", "", "Nothing is cached."),
    same("--start-timeout"),
    same("--network-interfaces"),
    same("--network-interface"),
    same("--output-filename"),
    same("--verbose"),
    same("--config-file"),
    same("-p --ssh-port"),
    same("-i --ssh-identity-file"),
    ignored("--fusion-threshold-mb", _NO_THREAD, INTEGER),
    ignored("--cycle-time-ms", _NO_THREAD, DECIMAL),
    ignored("--cache-capacity", _NO_THREAD, INTEGER),
    *_ignored_pair("hierarchical-allreduce", _NO_ALGORITHM),
    *_ignored_pair("hierarchical-allgather", _NO_ALGORITHM),
    *_ignored_pair("torus-allreduce", _NO_ALGORITHM),
    *_ignored_pair("autotune", _NO_THREAD),
    ignored("--autotune-log-file", _NO_THREAD, TEXT),
    ignored("--autotune-warmup-samples", _NO_THREAD, INTEGER),
    ignored("--autotune-steps-per-sample", _NO_THREAD, INTEGER),
    ignored("--autotune-bayes-opt-max-samples", _NO_THREAD, INTEGER),
    ignored("--autotune-gaussian-process-noise", _NO_THREAD, _SHARE),
    same("--min-np --min-num-proc"),
    same("--max-np --max-num-proc"),
    same("--slots-per-host"),
    same("--elastic-timeout"),
    same("--reset-limit"),
    same("--blacklist-cooldown-range"),
    _variable("--timeline-filename", "HOROVOD_TIMELINE={}", TEXT),
    _variable("--timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES=1", group="timeline-mark-cycles"),
    _variable("--no-timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES=0", group="timeline-mark-cycles"),
    _variable("--no-stall-check", "HOROVOD_STALL_CHECK_DISABLE=1", group="stall-check"),
    _variable("--stall-check", "HOROVOD_STALL_CHECK_DISABLE=0", group="stall-check"),
    _variable("--stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS={}", INTEGER),
    _variable("--stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={}", INTEGER),
    *_ignored_pair("mpi-threads-disable", _NO_MPI),
    ignored("--mpi-args", _NO_MPI, TEXT),
    _variable("--tcp", "NCCL_IB_DISABLE=1"),
    ignored("--binding-args", _NO_AFFINITY, TEXT),
    ignored("--num-nccl-streams", _STREAMS, INTEGER),
    ignored("--thread-affinity", _NO_AFFINITY, INTEGER),
    ignored("--gloo-timeout-seconds", _GLOO_TIMEOUT, INTEGER),
    ForeignOption(
        "--log-level",
        "verbose",
        "INFO and below mean --verbose.",
        _LEVEL,
        meaning=lambda level: True if level in _VERBOSE else None,
    ),
    ignored("--log-with-timestamp", _NO_TIMES, group="timestamps"),
    ignored("--log-without-timestamp", _NO_TIMES, group="timestamps"),
    ignored("--log-hide-timestamp", _NO_TIMES, group="timestamps"),
    ignored("--no-log-hide-timestamp", _NO_TIMES, group="timestamps"),
    same("-prefix-timestamp --prefix-output-with-timestamp", group="timestamps"),
    same("-H --hosts", group="hosts"),
    same("-hostfile --hostfile", group="hosts"),
    same("--host-discovery-script", group="hosts"),
    ForeignOption("--gloo", "", "The workers talk through gloo, and through NCCL for CUDA tensors."),
    ignored("--mpi", _NO_MPI),
    ignored("--jsrun", _JSRUN),
)
BY_FLAG: Mapping[str, ForeignOption] = {flag: option for option in OPTIONS for flag in option.flags}


def parse(words: Sequence[str]) -> tuple[list[Typed], tuple[str, ...]]:
    """Read horovodrun's command line: its options, and the user's command.

    Raises:
        UsageError: an option does not exist, is ambiguous, lacks its value, or excludes another one.
    """
    return foreign.parse(words, find_option, BY_FLAG)


def find_option(word: str) -> Typed:
    """Return the option that a word names, with the value that the same word holds.

    Raises:
        UsageError: there is no such option, or several begin so.
    """
    return foreign.find_option(word, BY_FLAG, _LIST)


def translate(typed: Iterable[Typed]) -> Translation:
    """Turn options of horovodrun into values of hvdrun's options; of several spellings of one the last counts.

    Raises:
        BadValueError: an option does not take such a value.
    """
    return foreign.translate(typed, BY_FLAG)
