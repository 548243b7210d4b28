"""Leaves the tracebacks of KeyboardInterrupt out of a stream: after a Ctrl-C every worker has one, and none is news."""

from collections.abc import Iterable, Iterator

_BEGINNING = b"Traceback (most recent call last):"
_INTERRUPT = b"KeyboardInterrupt"


class InterruptFilter:
    """Of one stream, line by line; a traceback is held back until its last line tells what it is of."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Of these lines, and what was held back, all that is to be shown now."""
        for line in lines:
            if line.startswith(_BEGINNING):
                yield from self.finish()
                self._held.append(line)
            elif self._held and line.startswith(b" "):
                self._held.append(line)
            elif self._held and line.startswith(_INTERRUPT):
                self._held.clear()
            else:
                yield from self.finish()
                yield line

    def finish(self) -> list[bytes]:
        """Nothing follows: what was held back is shown."""
        held, self._held = self._held, []
        return held
