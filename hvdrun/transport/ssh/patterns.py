"""The patterns of ssh's files: * and ? are special, and ! in front of one excludes what it fits."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def fits(name: str, pattern: str) -> bool:
    """The pattern, without a !, fits the name; brackets, as around an address with a port, are not special."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def fits_any(name: str, patterns: Iterable[str]) -> bool:
    """Some pattern fits, and none that begins with !."""
    fitting = [pattern for pattern in patterns if fits(name, pattern.removeprefix("!"))]
    return bool(fitting) and not any(pattern.startswith("!") for pattern in fitting)
