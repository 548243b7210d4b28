"""Reads the words before the command by a table of options.

All command lines of hvdrun are read here: of `hvdrun`, `hvdrun horovodrun`, `hvdrun agent` and `hvdrun token`. They
differ in their table, and in the spellings of a flag that they accept.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from hvdrun.errors import UsageError
from hvdrun.options.option import Option, RawValues

_IN_COMMAND = "it belongs to Python, as in hvdrun -np 2 python -m module."
_NO_NEED = "leave it out, hvdrun connects the workers by itself."
_NO_CHOICE = "leave it out, there is nothing to choose here."
_FILES = "--output-filename DIR writes what each worker prints into files too."
_OF_OTHERS = {  # flags of torchrun, Python and old versions of mpirun, without their dashes
    **dict.fromkeys(("m", "module"), _IN_COMMAND),
    **dict.fromkeys(("master-addr", "master-port", "local-addr", "node-rank", "standalone"), _NO_NEED),
    **dict.fromkeys(("rdzv-backend", "rdzv-conf", "rdzv-endpoint", "rdzv-id"), _NO_NEED),
    **dict.fromkeys(("log-dir", "r", "redirects", "t", "tee", "local-ranks-filter"), _FILES),
    **dict.fromkeys(("duplicate-stdout-filters", "duplicate-stderr-filters"), _FILES),
    **dict.fromkeys(("event-log-handler", "logs-specs", "role", "signals-to-handle"), _NO_CHOICE),
    **dict.fromkeys(("start-method", "virtual-local-rank"), _NO_CHOICE),
    "nproc-per-node": "-np is the number of all workers, as in hvdrun -np 2 python train.py.",
    "nnodes": "-H names the hosts, as in -H server1:4,server2:4.",
    "no-python": "leave it out, hvdrun starts any program.",
    "run-path": "leave it out, as in hvdrun -np 2 python script.py.",
    "numa-binding": "hvdrun's -bind-to numa gives each worker a NUMA node.",
    "shutdown-timeout": "hvdrun's --grace is the time that a worker has to end.",
    "bynode": "-map-by node gives each host the same number of workers.",
    "byslot": "leave it out, hvdrun fills the slots of a host before the next one; -map-by slot says so.",
    "monitor-interval": "leave it out, hvdrun notices an end when it happens.",
}


class Typed(NamedTuple):
    """An option on the command line: the option, its flag as it is spelled there, and the words of its value."""

    option: Option
    flag: str
    values: tuple[str, ...] = ()


def read_words(words: Sequence[str], find: Callable[[str], Typed]) -> tuple[list[Typed], int]:
    """Read the options before the command, and count the words before it; `--` may separate them.

    Args:
        words: the command line.
        find: returns the option that a word names, with the value that the same word holds, as in `--np=2`. It raises
            UnknownOptionError for any other word.

    Raises:
        UsageError: an option does not exist, lacks its value, or takes none.
    """
    found: list[Typed] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return found, index + 1
        if word == "-" or not word.startswith("-"):
            break

        option, flag, values = find(word)
        if len(values) > option.arity:
            raise UsageError(f"{flag} takes no value.")
        end = index + 1 + option.arity - len(values)
        if end > len(words):
            raise UsageError(f"{flag} lacks its value: it takes {option.wanted}.")
        found.append(Typed(option, flag, (*values, *words[index + 1 : end])))
        index = end
    return found, index


def gather(typed: Iterable[Typed]) -> dict[str, RawValues]:
    """The value of each option by dest: the last that was typed, or all of them for an option that repeats."""
    given: dict[str, RawValues] = {}
    for option, _, values in typed:
        value, former = option.give(values), given.get(option.dest)
        if option.repeats and not isinstance(value, bool | None):
            if not isinstance(former, tuple):
                former = ()
            given[option.dest] = (*former, value)
        elif value is not None:
            given[option.dest] = value
    return given


def split_flag(word: str, known: Mapping[str, Option]) -> Typed | None:
    """Read `--flag` or `--flag=value`; None for a flag that is not among the known ones."""
    flag, equals, value = word.partition("=")
    if flag not in known:
        return None
    if equals:
        return Typed(known[flag], flag, (value,))
    return Typed(known[flag], flag, ())


def find_remedy(flag: str) -> str | None:
    """What replaces a flag of torchrun or Python; None for any other flag."""
    return _OF_OTHERS.get(flag.lstrip("-").replace("_", "-"))


def explain_no_effect(flags: Collection[str], reason: str) -> str:
    """A remark on options that do nothing."""
    return f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect: {reason}."
