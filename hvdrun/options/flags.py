"""Reads the words of a command line, and says what a mistyped flag probably means.

A flag is only what the table has: most parsers would read `-nproc 4` as `-n proc`, and `-Hosts a:1` as the host `osts`
and the command `a:1`.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options.foreign import find_remedy
from hvdrun.options.option import Given, Option
from hvdrun.options.table import BY_FLAG

_RESEMBLES = 0.6  # as difflib counts likeness: 1 is equal
_SHORT_LETTERS = 2  # of a flag like -v
_VARIABLE_FLAG = "-x"
_TELLING_LETTERS = 4  # a shorter flag begins too many words

_OF_HOROVODRUN = "it is horovodrun's, and hvdrun horovodrun takes it."


class Answered(Exception):  # noqa: N818 - what was asked for, and no error
    """The command line asks for a text and not for a job."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def explain_unknown(flag: str) -> UnknownOptionError:
    """What to do instead of a flag of torchrun or Python, or what a mistyped one probably means."""
    remedy = find_remedy(flag)
    if remedy is None and flag.startswith("--"):
        from hvdrun.options.horovodrun.table import BY_WORD  # noqa: PLC0415 - only a wrong flag pays for it

        remedy = _OF_HOROVODRUN if flag in BY_WORD else None
    return UnknownOptionError(flag, suggest_option(flag)) if remedy is None else UnknownOptionError(flag, None, remedy)


def read_words(
    words: Sequence[str],
    options: Mapping[str, Option] = BY_FLAG,
    explain: Callable[[str], UsageError] = explain_unknown,
) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Find what is given to which option, by dest in the order of the words, and what follows: the user's command.

    Args:
        words: the command line.
        options: by flag.
        explain: makes the error for a flag that is none of these.

    Raises:
        UsageError: a word before the command is no option, or an option lacks its value.
    """
    given: dict[str, Given] = {}
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if option is None:
            raise explain(flag)
        if equals and len(flag) == _SHORT_LETTERS:  # elsewhere the sign would be a part of the value
            raise UnknownOptionError(word, f"{flag} {value}" if option.takes_value and value else flag)
        if equals and not option.takes_value:
            raise UsageError(f"Option '{flag}' does not take a value.")
        values = [value] if equals else []
        end = index + 1 + option.arity - len(values)
        if end > len(words):
            raise UsageError(f"{flag} lacks its value: it takes {option.wanted}.")
        values += words[index + 1 : end]
        _note(given, option, values)
        index = end
    return given, tuple(words[index:])


def _note(given: dict[str, Given], option: Option, values: Sequence[str]) -> None:
    """Of an option that is given again the last value holds, except where it repeats."""
    if not option.takes_value:
        given[option.dest] = True
        return
    value = values[0] if option.words == 1 else tuple(values)
    former = given.get(option.dest)
    given[option.dest] = (*(former if isinstance(former, tuple) else ()), value) if option.repeats else value


def suggest_option(word: str) -> str | None:
    """What a mistyped flag probably means; None when it resembles nothing."""
    for flag in sorted((flag for flag, option in BY_FLAG.items() if option.takes_value), key=len, reverse=True):
        rest = word.removeprefix(flag)
        is_value = (
            rest != word
            and rest.isprintable()
            and (rest[0].isdecimal() or ":" in rest or (flag == _VARIABLE_FLAG and rest.isupper()))
        )
        if is_value and not flag.startswith("--"):
            return f"{flag} {rest}"
    score, flag = max((_measure_likeness(word, flag), flag) for flag in BY_FLAG)
    return flag if score >= _RESEMBLES else None


def _measure_likeness(word: str, flag: str) -> float:
    """From 0 to about 1; exchanged letters and an ending too few or too many count more than difflib gives them."""
    typed, known = word.strip("-").lower(), flag.strip("-").lower()
    likeness = SequenceMatcher(None, typed, known).ratio()
    is_longer = len(known) >= _TELLING_LETTERS and typed.startswith(known)
    if typed and (sorted(typed) == sorted(known) or known.startswith(typed) or is_longer):
        likeness = max(likeness, 0.9)
    same_dashes = word.startswith("--") == flag.startswith("--")
    return likeness + (0.01 if same_dashes else 0.0)
