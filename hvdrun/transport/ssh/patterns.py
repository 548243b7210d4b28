"""The patterns of ssh's files: * and ? are special, and ! in front of one excludes what it fits."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def fits_any(name: str, patterns: Iterable[str]) -> bool:
    """Some pattern fits, and none that begins with !; brackets, as around an address with a port, are not special."""
    fitting = [pattern for pattern in patterns if fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]"))]
    return bool(fitting) and not any(pattern.startswith("!") for pattern in fitting)
