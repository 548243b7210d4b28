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
class Kind:
    """What an option's value is.

    parse: reads one word, raising ValueError when it cannot.
    metavar: what stands for the value, a word for each of its words.
    wanted: what a value must be, for errors, in words that follow "takes".
    """

    parse: Callable[[str], object]
    metavar: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    spellings: all flags, the one to show first, with blanks between them.
    dest: the name of its value, and of the field of the job that it gives, if it gives one.
    kind: None for a switch, which takes no value; example: of a value, for errors.
    words: how many words follow the flag, for an option that takes a value.
    repeats: it may be given several times, and its value is a tuple of what was given each time.
    default: as it would be typed, words apart; None when there is none.
    environment: a variable that stands for the option where it is not given.
    acts: whether it is done at once, whatever else is asked for (--help).
    switches_off: without it the value is True; of a switch.
    """

    spellings: str
    dest: str
    help: str
    kind: Kind | None = None
    example: str = ""
    words: int = 1
    repeats: bool = False
    default: str | None = None
    environment: str | None = None
    acts: bool = False
    switches_off: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """All spellings."""
        return tuple(self.spellings.split())

    @property
    def takes_value(self) -> bool:
        """Whether words follow the flag."""
        return self.kind is not None

    @property
    def metavar(self) -> str:
        """What stands for the value; "" for a switch."""
        return "" if self.kind is None else self.kind.metavar

    @property
    def wanted(self) -> str:
        """What a value must be, and an example."""
        if self.kind is None:
            return ""
        return f"{self.kind.wanted}, as in {self.flags[0]} {self.example}" if self.example else self.kind.wanted

    @property
    def arity(self) -> int:
        """How many words follow the flag."""
        return self.words if self.takes_value else 0

    def read(self, text: str, source: str) -> object:
        """Read one word of the option's value.

        Raises:
            BadValueError: it cannot be read; `source` says where it came from.
        """
        if self.kind is None:
            raise TypeError(f"{self.flags[0]} takes no value")
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise BadValueError(source, self.wanted, text) from error
