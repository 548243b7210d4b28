"""The names under which operations travel; those that the program gives none are counted.

The ranks' n-th calls of a kind in a set belong together, so what is counted must be the same on all members: each kind
and set is counted by itself, since ranks use different sets; anew after each join, since who has joined early has
counted less than the others; and anew in a set whose number another one had before, with other members.
"""

import threading

from worker_runtime.errors import WrongArgumentError

_LONG = 8000  # characters; in UTF-8 each has up to four bytes
_MAX_BYTES = 4 * _LONG  # a question and whatever is derived from its name have room for twice as many


class Names:
    """Counts unnamed operations; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str], int] = {}  # by set and kind
        self._joins = 0  # that have been completed

    def make(self, kind: str, name: str | None, process_set: int) -> str:
        """The name of the next operation: "allreduce.loss", or "allreduce.noname.3".

        Raises:
            WrongArgumentError: the name is no text, or cannot travel.
        """
        if name is not None:
            if not isinstance(name, str):
                raise WrongArgumentError(f"{kind}: name is {name!r}; give a str, or None")
            if len(name) > _LONG or not name.isascii():
                _check(kind, name)
            return f"{kind}.{name}"
        key = process_set, kind
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            return f"{kind}.noname.{f'{self._joins}.' if self._joins else ''}{count}"

    def count_join(self) -> None:
        """All ranks have joined."""
        with self._lock:
            self._joins += 1
            self._counts.clear()

    def forget(self, process_set: int) -> None:
        """The set is gone."""
        with self._lock:
            self._counts = {key: count for key, count in self._counts.items() if key[0] != process_set}


def _check(kind: str, name: str) -> None:
    try:
        count = len(name.encode())
    except UnicodeEncodeError as error:
        raise WrongArgumentError(f"{kind}: name is {name[:40]!r}, which is no text that can travel: {error}") from None
    if count > _MAX_BYTES:
        raise WrongArgumentError(f"{kind}: name begins with {name[:40]!r} and has {count} bytes; give a shorter one")
