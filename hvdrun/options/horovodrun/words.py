"""Reads horovodrun's command line, and says what its options mean in hvdrun's table.

It reads as argparse reads Horovod's: prefixes of long options, values glued to short ones. Unlike argparse it never
looks into the command, whose own options may resemble horovodrun's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options.foreign import find_remedy
from hvdrun.options.horovodrun.table import BY_WORD, Word
from hvdrun.options.option import Given
from hvdrun.options.table import BY_DEST

_SHORT_LETTERS = 2
_RESEMBLES = 0.7  # as difflib counts likeness: 1 is equal
_HELP = "hvdrun horovodrun --help lists all options."


class Typed(NamedTuple):
    """An option that was typed: which, how it was spelled, and what followed it."""

    word: Word
    flag: str
    values: tuple[str, ...]


def read_words(words: Sequence[str]) -> tuple[tuple[Typed, ...], tuple[str, ...]]:
    """The options before the command, and the command; `--` may stand between them.

    Raises:
        UsageError: an option does not exist, could be several, lacks its value, or excludes another.
    """
    found: list[Typed] = []
    index = 0
    while index < len(words):
        text = words[index]
        if text == "--":
            index += 1
            break
        if text == "-" or not text.startswith("-"):
            break
        index += 1
        flag, glued = _find_flag(text)
        word = BY_WORD[flag]
        if glued and not word.words:
            raise UsageError(f"{flag} takes no value.")
        missing = word.words - len(glued)
        values = (*glued, *words[index : index + missing])
        index += missing
        if len(values) < word.words:
            raise UsageError(f"{flag} lacks its value.")
        found.append(Typed(word, flag, values))
    _refuse_exclusive(found)
    return tuple(found), tuple(words[index:])


def _find_flag(text: str) -> tuple[str, tuple[str, ...]]:
    """The flag that a word means, and the value that is glued to it, where there is one."""
    if text in BY_WORD:
        return text, ()
    flag, equals, value = text.partition("=")
    glued = (value,) if equals else ()
    if flag in BY_WORD:
        return flag, glued
    short = text[:_SHORT_LETTERS]
    if short in BY_WORD and BY_WORD[short].words and not text.startswith("--"):
        return short, (text[_SHORT_LETTERS:],)
    meant = sorted(known for known in BY_WORD if known.startswith(flag)) if flag.startswith("--") else []
    if len({id(BY_WORD[known]) for known in meant}) == 1:
        return meant[0], glued
    if meant:
        raise UsageError(f"{flag} could be {', '.join(meant[:-1])} or {meant[-1]}: write more of it.")
    remedy = find_remedy(flag)
    nearest = None if remedy else next(iter(get_close_matches(flag, BY_WORD, 1, _RESEMBLES)), None)
    raise UnknownOptionError(flag, nearest, remedy or _HELP)


def _refuse_exclusive(found: Sequence[Typed]) -> None:
    first: dict[str, Typed] = {}
    for typed in found:
        group = typed.word.excludes
        if not group:
            continue
        former = first.setdefault(group, typed)
        if former.word is not typed.word:
            raise UsageError(f"{typed.flag} and {former.flag} exclude each other: give only one of them.")


@dataclass(slots=True)
class Translation:
    """What was given to options of hvdrun, by dest, and what to say of options that have no effect; sentences."""

    given: dict[str, Given] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def translate(typed: Iterable[Typed]) -> Translation:
    """Turn options of horovodrun into values of hvdrun's options; of several spellings of one the last holds.

    Raises:
        BadValueError: an option cannot have such a value.
    """
    result = Translation()
    idle: dict[str, list[str]] = {}
    for word, flag, values in typed:
        word.check(flag, values)
        if word.instead:
            flags = idle.setdefault(word.instead, [])
            flags.extend(() if flag in flags else (flag,))
        if word.variable:
            _give(result, "forwarded", (f"{word.variable}={word.value or values[0]}",))
        if word.dest:
            meant = word.read(values)
            if meant is not None:
                _give(result, word.dest, meant)
    result.remarks.extend(
        f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect: {instead}."
        for instead, flags in idle.items()
    )
    return result


def _give(result: Translation, dest: str, value: Given) -> None:
    """Note a value; what may be given several times adds up."""
    former = result.given.get(dest)
    if BY_DEST[dest].repeats and isinstance(former, tuple) and isinstance(value, tuple):
        value = (*former, *value)
    result.given[dest] = value
