"""Options of the launchers that hvdrun replaces: how their command lines are read, and what they mean for hvdrun.

A command line is read as argparse reads theirs: long options may be shortened, and a value may follow a short option in
the same word. Unlike argparse, hvdrun does not read the words of the command, which may resemble options.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options import table
from hvdrun.options.kinds import parse_integer
from hvdrun.options.option import Kind, Option, RawValue, RawValues
from hvdrun.options.words import Typed, explain_no_effect, find_remedy, gather, read_words, split_flag

_SHORT_FLAG = 2  # characters of a flag like -p
_MIN_LIKENESS = 0.7  # of difflib, where 1 means equal


@dataclass(frozen=True, slots=True)
class ForeignOption(Option):
    """An option of another launcher.

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
        if self.meaning is None:
            return Option.give(self, values)
        return self.meaning(*values)


def parse_decimal(text: str, *, most: float = sys.float_info.max) -> float:
    """Read a number from 0 to `most`.

    Raises:
        ValueError: the text is no such number.
    """
    number = float(text)
    if not 0 <= number <= most:
        raise ValueError(text)
    return number


INTEGER = Kind(partial(parse_integer, least=0, most=sys.maxsize), "N", "a whole number of at least 0")
DECIMAL = Kind(parse_decimal, "N", "a number of at least 0")
TEXT = Kind(str, "VALUE", "a value")


def same(spellings: str, group: str = "") -> ForeignOption:
    """An option that hvdrun has under the same names."""
    own = table.BY_FLAG[spellings.split(maxsplit=1)[0]]
    text = f"As hvdrun's {own.flags[0]}."
    return ForeignOption(spellings, own.dest, text, own.kind, own.words, own.repeats, acts=own.acts, group=group)


def ignored(spellings: str, reason: str, kind: Kind | None = None, group: str = "") -> ForeignOption:
    """An option without an effect, about which hvdrun prints a line."""
    return ForeignOption(spellings, "", f"No effect: {reason}.", kind, reason=reason, group=group)


def page(spellings: str, dest: str, text: str) -> ForeignOption:
    """An option that prints a page."""
    return ForeignOption(spellings, dest, text, acts=True)


class Translation(NamedTuple):
    """Values for options of hvdrun by dest, and a sentence about each group of options without an effect."""

    given: dict[str, RawValues]
    remarks: list[str]


def parse(
    words: Sequence[str], find: Callable[[str], Typed], known: Mapping[str, ForeignOption]
) -> tuple[list[Typed], tuple[str, ...]]:
    """Read a launcher's command line: its options, and the words after them.

    Args:
        words: the command line.
        find: returns the option that a word names; see `find_option`.
        known: the launcher's options by flag.

    Raises:
        UsageError: an option does not exist, is ambiguous, lacks its value, or excludes another one.
    """
    typed, start = read_words(words, find)
    first: dict[str, Typed] = {}
    for each in typed:
        group = known[each.flag].group
        former = first.setdefault(group, each)
        if group and former.option is not each.option:
            raise UsageError(f"{each.flag} and {former.flag} exclude each other: give only one of them.")
    return typed, tuple(words[start:])


def find_option(word: str, known: Mapping[str, ForeignOption], listing: str) -> Typed:
    """Return the option that a word names, with the value that the same word holds.

    Args:
        word: begins with a dash.
        known: the launcher's options by flag.
        listing: a sentence that says where all options are listed.

    Raises:
        UsageError: there is no such option, or several begin so.
    """
    typed = split_flag(word, known)
    if typed is not None:
        return typed

    short = word[:_SHORT_FLAG]
    if short in known and known[short].takes_value and not word.startswith("--"):
        return Typed(known[short], short, (word[_SHORT_FLAG:],))

    flag, equals, value = word.partition("=")
    longer = []
    if flag.startswith("--"):
        longer = sorted(each for each in known if each.startswith(flag))
    if len({known[each].flags for each in longer}) == 1:
        return Typed(known[longer[0]], longer[0], (value,) if equals else ())
    if longer:
        raise UsageError(f"{flag} could be {', '.join(longer[:-1])} or {longer[-1]}: write more of it.")

    remedy = find_remedy(flag)
    nearest = None
    if not remedy:
        nearest = next(iter(get_close_matches(flag, known, 1, _MIN_LIKENESS)), None)
    raise UnknownOptionError(flag, nearest, remedy or listing)


def translate(typed: Iterable[Typed], known: Mapping[str, ForeignOption]) -> Translation:
    """Turn a launcher's options into values of hvdrun's options; of several spellings of one the last counts.

    Raises:
        BadValueError: an option does not take such a value.
    """
    with_effect: list[Typed] = []
    flags: dict[str, dict[str, None]] = {}  # by reason; each flag once, in order
    for each in typed:
        option = known[each.flag]
        # hvdrun reads the values of the others.
        if option.reason or option.meaning is not None:
            for text in each.values:
                option.read(text, each.flag)
        if option.reason:
            flags.setdefault(option.reason, {})[each.flag] = None
        elif option.dest:
            with_effect.append(each)
    return Translation(gather(with_effect), [explain_no_effect(names, reason) for reason, names in flags.items()])
