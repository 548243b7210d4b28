"""Checks the flags before the command as they were typed, and says what a mistyped one probably means.

click is more lenient than is good here: it would read `-nproc 4` as `-n proc`, and `-Hosts a:1` as the host `osts` and
the command `a:1`. Here a flag is only what the table has.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options.foreign import find_remedy
from hvdrun.options.table import BY_FLAG

_RESEMBLES = 0.6  # as difflib counts likeness: 1 is equal
_SHORT_LETTERS = 2  # of a flag like -v
_VARIABLE_FLAG = "-x"
_TELLING_LETTERS = 4  # a shorter flag begins too many words

_OF_HOROVODRUN = "it is horovodrun's, and hvdrun horovodrun takes it."


def find_command(arguments: Sequence[str]) -> int:
    """Where the user's command begins: the number of words before it.

    Raises:
        UnknownOptionError: a word before the command is no option.
        UsageError: the last option lacks its value.
    """
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return index + 1
        if word == "-" or not word.startswith("-"):
            return index
        flag, equals, value = word.partition("=")
        option = BY_FLAG.get(flag)
        if option is None:
            raise explain_unknown(flag)
        if equals and len(flag) == _SHORT_LETTERS:  # click takes the sign for a part of the value
            raise UnknownOptionError(word, f"{flag} {value}" if option.takes_value and value else flag)
        index += 1
        index += option.arity - bool(equals and option.takes_value)
        if index > len(arguments):
            raise UsageError(f"{flag} lacks its value: it takes {option.wanted}.")
    return index


def explain_unknown(flag: str) -> UnknownOptionError:
    """What to do instead of a flag of torchrun or Python, or what a mistyped one probably means."""
    remedy = find_remedy(flag)
    if remedy is None and flag.startswith("--"):
        from hvdrun.options.horovodrun.table import BY_WORD  # noqa: PLC0415 - only a wrong flag pays for it

        remedy = _OF_HOROVODRUN if flag in BY_WORD else None
    return UnknownOptionError(flag, suggest_option(flag)) if remedy is None else UnknownOptionError(flag, None, remedy)


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
