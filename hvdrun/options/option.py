"""What one option is."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from hvdrun.errors import BadValueError

# What was given to an option, as typed: a switch, one word, several words; a tuple of these where it repeats.
Given = bool | str | tuple[str | tuple[str, ...], ...]


class Group(StrEnum):
    """Under which heading an option stands."""

    WORKERS = "Workers"
    HOSTS = "Hosts"
    ELASTIC = "Elastic jobs, which lose and gain workers"
    REMOTE = "Hosts other than this one"
    JOINING = "Hosts whose agents come by themselves"
    OUTPUT = "Input and output"
    TIME = "Time limits (30, 30s, 2m, 1.5h, 500ms)"
    MPIRUN = "Words of mpirun without an effect here"
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    flags: all spellings, the one to show first.
    dest: the name of its value, and of the field of the job that it gives, if it gives one.
    switches_off: without it the value is True; of a switch.
    parse: reads one word, raising ValueError when it cannot; None for a switch, which takes no value.
    words: how many words follow the flag, for an option that takes a value.
    repeats: it may be given several times, and its value is a tuple of what was given each time.
    wanted: what a value must be, for errors, in words that follow "takes".
    default: as it would be typed, words apart; None when there is none.
    environment: a variable that stands for the option where it is not given.
    acts: whether it is done at once, whatever else is asked for (--help).
    """

    flags: tuple[str, ...]
    dest: str
    group: Group
    help: str
    parse: Callable[[str], object] | None = None
    words: int = 1
    repeats: bool = False
    metavar: str = ""
    wanted: str = ""
    default: str | None = None
    environment: str | None = None
    acts: bool = False
    switches_off: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether words follow the flag."""
        return self.parse is not None

    @property
    def arity(self) -> int:
        """How many words follow the flag."""
        return self.words if self.takes_value else 0

    def read(self, text: str, source: str) -> object:
        """Read one word of the option's value.

        Raises:
            BadValueError: it cannot be read; `source` says where it came from.
        """
        if self.parse is None:
            raise TypeError(f"{self.flags[0]} takes no value")
        try:
            return self.parse(text)
        except ValueError as error:
            raise BadValueError(source, self.wanted, text) from error
