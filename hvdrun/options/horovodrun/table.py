"""All options of horovodrun, in its own order, and what each means here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hvdrun.errors import BadValueError
from hvdrun.options.option import Given, Kind


@dataclass(frozen=True, slots=True)
class Word:
    """One option of horovodrun, and what becomes of it.

    flags: all spellings.
    dest: the option of hvdrun whose value it gives; "" for none.
    means: what it gives there, where that is not what was typed.
    variable: the variable of the workers that it sets; "" for none.
    value: of that variable, "" where it is what was typed.
    instead: why it has no effect here, and what takes its place; half a sentence.
    kind: of a value that no option of hvdrun reads.
    words: how many words follow the flag.
    excludes: the name of a group; only one option of a group may be given.
    """

    flags: tuple[str, ...]
    dest: str = ""
    means: Callable[[str], Given | None] | None = None
    variable: str = ""
    value: str = ""
    instead: str = ""
    kind: Kind | None = None
    words: int = 0
    excludes: str = ""

    def check(self, flag: str, values: tuple[str, ...]) -> None:
        """Refuse what no option of hvdrun will read.

        Raises:
            BadValueError: it is not what is wanted.
        """
        if self.kind is None:
            return
        try:
            self.kind.parse(values[0])
        except ValueError as error:
            raise BadValueError(flag, self.kind.wanted, values[0]) from error

    def read(self, values: tuple[str, ...]) -> Given | None:
        """What is given to the option `dest`; None for nothing."""
        if self.means is not None:
            return self.means(values[0])
        if self.words > 1:
            return values
        return values[0] if values else True


def parse_natural(text: str) -> int:
    """Read a whole number of at least 0.

    Raises:
        ValueError: it is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def parse_number(text: str) -> float:
    """Read a number of at least 0.

    Raises:
        ValueError: it is none.
    """
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError(text)
    return number


def parse_share(text: str) -> float:
    """Read a number from 0 to 1.

    Raises:
        ValueError: it is none.
    """
    number = parse_number(text)
    if number > 1:
        raise ValueError(text)
    return number


LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def parse_level(text: str) -> str:
    """Read a level of logging.

    Raises:
        ValueError: it is none.
    """
    if text not in LEVELS:
        raise ValueError(text)
    return text


HELP, VERSION, CHECK_BUILD = ("-h", "--help"), ("-v", "--version"), ("-cb", "--check-build")

_NO_THREAD = "there is no background thread to tune; gradients are averaged while backward() runs"
_NO_ALGORITHM = "gloo and NCCL choose how they reduce"
_NO_MPI = "there is no MPI underneath, the workers talk through gloo or NCCL"
_NO_TIMELINE = "timelines are not recorded; torch.profiler shows the collectives"
_NO_TIMES = "the runtime's lines carry no time; -prefix-timestamp shows when each line came"
_NO_AFFINITY = "hvdrun --bind-to core, socket or numa binds workers to CPUs"
_NATURAL = Kind(parse_natural, "N", "a whole number of at least 0")
_NUMBER = Kind(parse_number, "N", "a number of at least 0")
_SHARE = Kind(parse_share, "N", "a number from 0 to 1")
_LEVEL = Kind(parse_level, "LEVEL", f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
_TALKATIVE = frozenset(LEVELS[: LEVELS.index("WARNING")])


def _talk(level: str) -> Given | None:
    return True if level in _TALKATIVE else None


def _list_interfaces(names: str) -> Given:
    return (names,)


def _number(flag: str, instead: str) -> Word:
    return Word((flag,), instead=instead, kind=_NATURAL, words=1)


def _switch(name: str, instead: str) -> Iterator[Word]:
    """`--name` and `--no-name`, which exclude each other."""
    for flag in (f"--{name}", f"--no-{name}"):
        yield Word((flag,), instead=instead, excludes=name)


def _same(*flags: str, dest: str, words: int = 1, excludes: str = "") -> Word:
    return Word(flags, dest=dest, words=words, excludes=excludes)


def _stall(flag: str, variable: str) -> Word:
    return Word((flag,), variable=variable, kind=_NATURAL, words=1)


WORDS: tuple[Word, ...] = (
    Word(VERSION),
    Word(CHECK_BUILD),
    Word(HELP),
    _same("-np", "--num-proc", dest="size"),
    Word(("--disable-cache",)),  # nothing is cached
    _same("--start-timeout", dest="start_timeout_seconds"),
    Word(("--network-interfaces",), dest="interfaces", means=_list_interfaces, words=1),
    Word(("--network-interface",), dest="interfaces", means=_list_interfaces, words=1),
    _same("--output-filename", dest="output_folder"),
    _same("--verbose", dest="verbose", words=0),
    _same("--config-file", dest="config_file"),
    _same("-p", "--ssh-port", dest="ssh_port"),
    _same("-i", "--ssh-identity-file", dest="ssh_identity_file"),
    _number("--fusion-threshold-mb", _NO_THREAD),
    Word(("--cycle-time-ms",), instead=_NO_THREAD, kind=_NUMBER, words=1),
    _number("--cache-capacity", _NO_THREAD),
    *_switch("hierarchical-allreduce", _NO_ALGORITHM),
    *_switch("hierarchical-allgather", _NO_ALGORITHM),
    *_switch("torus-allreduce", _NO_ALGORITHM),
    *_switch("autotune", _NO_THREAD),
    Word(("--autotune-log-file",), instead=_NO_THREAD, words=1),
    _number("--autotune-warmup-samples", _NO_THREAD),
    _number("--autotune-steps-per-sample", _NO_THREAD),
    _number("--autotune-bayes-opt-max-samples", _NO_THREAD),
    Word(("--autotune-gaussian-process-noise",), instead=_NO_THREAD, kind=_SHARE, words=1),
    _same("--min-np", "--min-num-proc", dest="min_size"),
    _same("--max-np", "--max-num-proc", dest="max_size"),
    _same("--slots-per-host", dest="slots_per_host"),
    _same("--elastic-timeout", dest="timeout_seconds"),
    _same("--reset-limit", dest="reset_limit"),
    _same("--blacklist-cooldown-range", dest="cooldown_seconds", words=2),
    Word(("--timeline-filename",), instead=_NO_TIMELINE, words=1),
    *_switch("timeline-mark-cycles", _NO_TIMELINE),
    Word(("--no-stall-check",), variable="HOROVOD_STALL_CHECK_DISABLE", value="1", excludes="stall-check"),
    Word(("--stall-check",), variable="HOROVOD_STALL_CHECK_DISABLE", value="0", excludes="stall-check"),
    _stall("--stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    _stall("--stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    *_switch("mpi-threads-disable", _NO_MPI),
    Word(("--mpi-args",), instead=_NO_MPI, words=1),
    Word(("--tcp",), variable="NCCL_IB_DISABLE", value="1"),
    Word(("--binding-args",), instead=_NO_AFFINITY, words=1),
    _number("--num-nccl-streams", "torch chooses the streams of NCCL"),
    _number("--thread-affinity", _NO_AFFINITY),
    _number("--gloo-timeout-seconds", "the stall check says which ranks wait, and a lost worker ends a collective"),
    Word(("--log-level",), dest="verbose", means=_talk, kind=_LEVEL, words=1),
    *(
        Word((flag,), instead=_NO_TIMES, excludes="timestamps")
        for flag in (
            "--log-with-timestamp",
            "--log-without-timestamp",
            "--log-hide-timestamp",
            "--no-log-hide-timestamp",
        )
    ),
    _same("-prefix-timestamp", "--prefix-output-with-timestamp", dest="marks_times", words=0, excludes="timestamps"),
    _same("-H", "--hosts", dest="hosts", excludes="hosts"),
    _same("-hostfile", "--hostfile", dest="hostfile", excludes="hosts"),
    _same("--host-discovery-script", dest="script", excludes="hosts"),
    Word(("--gloo",)),  # what the workers talk through already
    Word(("--mpi",), instead=_NO_MPI),
    Word(("--jsrun",), instead="hosts are reached over SSH; -H names them"),
)
BY_WORD: Mapping[str, Word] = {flag: word for word in WORDS for flag in word.flags}
