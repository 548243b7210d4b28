"""The flags of hvdrun's own command line: which option each names, and what a mistyped one probably means."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from hvdrun.errors import UnknownOptionError
from hvdrun.options.option import RawValues
from hvdrun.options.table import BY_FLAG
from hvdrun.options.words import Typed, find_remedy, gather, read_words, split_flag

_MIN_LIKENESS = 0.6  # of difflib, where 1 means equal
_SHORT_FLAG = 2  # characters of a flag like -v
_VARIABLE_FLAG = "-x"
_MIN_PREFIX = 4  # a shorter flag is the beginning of too many words

_OF_HOROVODRUN = "it is horovodrun's, and hvdrun horovodrun takes it."


def parse(words: Sequence[str]) -> tuple[dict[str, RawValues], tuple[str, ...]]:
    """Read hvdrun's command line: the value of each option on it, by dest, and the user's command.

    Raises:
        UsageError: an option does not exist, or is used wrongly.
    """
    typed, start = read_words(words, find_option)
    return gather(typed), tuple(words[start:])


def find_option(word: str) -> Typed:
    """Return the option of hvdrun that a word names.

    Raises:
        UnknownOptionError: there is no such option, or `=` follows a short flag.
    """
    typed = split_flag(word, BY_FLAG)
    if typed is None:
        raise explain_unknown(word.partition("=")[0])
    option, flag, values = typed
    if values and len(flag) == _SHORT_FLAG:
        raise UnknownOptionError(word, f"{flag} {values[0]}" if option.takes_value and values[0] else flag)
    return typed


def explain_unknown(flag: str) -> UnknownOptionError:
    """The error for a flag that hvdrun does not have: what replaces it, or which one was probably meant."""
    remedy = find_remedy(flag)
    if remedy is None and flag.startswith("--"):
        from hvdrun.options.horovodrun import BY_FLAG as OF_HOROVODRUN  # noqa: PLC0415 - only for an unknown flag

        if flag in OF_HOROVODRUN:
            remedy = _OF_HOROVODRUN
    if remedy is None:
        return UnknownOptionError(flag, suggest_option(flag))
    return UnknownOptionError(flag, None, remedy)


def suggest_option(word: str) -> str | None:
    """The flag that was probably meant by a mistyped one; None when it resembles no flag."""
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
    if score >= _MIN_LIKENESS:
        return flag
    return None


def _measure_likeness(word: str, flag: str) -> float:
    """From 0 to about 1; exchanged letters and a missing or added ending count for more than in difflib."""
    typed, known = word.strip("-").lower(), flag.strip("-").lower()
    likeness = SequenceMatcher(None, typed, known).ratio()
    is_longer = len(known) >= _MIN_PREFIX and typed.startswith(known)
    if typed and (sorted(typed) == sorted(known) or known.startswith(typed) or is_longer):
        likeness = max(likeness, 0.9)
    if word.startswith("--") == flag.startswith("--"):
        likeness += 0.01
    return likeness
