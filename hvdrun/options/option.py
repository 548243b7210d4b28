"""An option of a command line: its flags, its value, and where that comes from."""

from collections.abc import Callable
from dataclasses import dataclass

from hvdrun.errors import BadValueError

RawValue = bool | str | tuple[str, ...]  # one value as text: True or False of a switch, a word, or several words
RawValues = RawValue | tuple[str | tuple[str, ...], ...]  # a RawValue, or all values of an option that repeats


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of value that an option takes.

    parse: reads one word; raises ValueError for one that it cannot read.
    metavar: the placeholder in help pages; a value of several words has as many words here.
    wanted: a description of the values, for errors; it follows "takes".
    example: an example of a value, for errors; "" for none.
    """

    parse: Callable[[str], object]
    metavar: str
    wanted: str
    example: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    spellings: all flags with blanks between them; errors and help show the first one first.
    dest: the name of its value. The field of the job with this name gets the value.
    kind: None for a switch, which takes no value.
    words: how many words the value has.
    repeats: it may be given several times; its value is a tuple of all values.
    default: as on the command line; None for none.
    environment: a variable that gives the value if neither the command line nor the file does.
    acts: it prints a page and starts no job (--help).
    switches_off: of a switch: its value is True without the flag.
    """

    spellings: str
    dest: str
    help: str
    kind: Kind | None = None
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
        """The placeholder of the value in help pages; "" for a switch."""
        if self.kind is None:
            return ""
        return self.kind.metavar

    @property
    def wanted(self) -> str:
        """A description of the values, with an example."""
        if self.kind is None:
            return ""
        example = self.kind.example
        if example:
            return f"{self.kind.wanted}, as in {self.flags[0]} {example}"
        return self.kind.wanted

    @property
    def arity(self) -> int:
        """How many words follow the flag."""
        if self.takes_value:
            return self.words
        return 0

    def give(self, values: tuple[str, ...]) -> RawValue | None:
        """The value that the words after one flag give: True of a switch, else the word or the words."""
        if not self.takes_value:
            return True
        if self.words == 1:
            return values[0]
        return values

    def read(self, text: str, source: str) -> object:
        """Read one word of the option's value.

        Raises:
            BadValueError: it cannot be read; `source` names where it came from.
        """
        if self.kind is None:
            raise TypeError(f"{self.flags[0]} takes no value")
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise BadValueError(source, self.wanted, text) from error
