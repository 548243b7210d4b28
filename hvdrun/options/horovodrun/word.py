"""What one option of horovodrun is."""

from collections.abc import Callable
from dataclasses import dataclass

from hvdrun.errors import BadValueError
from hvdrun.options.option import Given


@dataclass(frozen=True, slots=True)
class Word:
    """One option of horovodrun, and what becomes of it.

    flags: all spellings.
    dest: the option of hvdrun whose value it gives; "" for none.
    means: what it gives there, where that is not what was typed.
    variable: the variable of the workers that it sets; "" for none.
    value: of that variable, "" where it is what was typed.
    instead: why it has no effect here, and what takes its place; half a sentence.
    parse: reads a value that no option of hvdrun reads, raising ValueError; wanted: what that must be.
    words: how many words follow the flag.
    excludes: the name of a group; only one option of a group may be given.
    """

    flags: tuple[str, ...]
    dest: str = ""
    means: Callable[[str], Given | None] | None = None
    variable: str = ""
    value: str = ""
    instead: str = ""
    parse: Callable[[str], object] | None = None
    wanted: str = ""
    words: int = 0
    excludes: str = ""

    def check(self, flag: str, values: tuple[str, ...]) -> None:
        """Refuse what no option of hvdrun will read.

        Raises:
            BadValueError: it is not what is wanted.
        """
        if self.parse is None:
            return
        try:
            self.parse(values[0])
        except ValueError as error:
            raise BadValueError(flag, self.wanted, values[0]) from error

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
