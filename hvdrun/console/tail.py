"""What a worker wrote last to one stream, so that a person finds his own line in it."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

TAIL_LINES = 10
HEAD_LINES = 12  # of the traceback in which the last lines are: its first frames are the program's own
_LINE_BYTES = 2000  # more of one line is not read on the page
_TRACEBACK = b"Traceback (most recent call last):"
_LEFT_OUT = b"  ...\n"


class Line(NamedTuple):
    """A line, and its place among those of both streams."""

    number: int
    text: bytes


class Tail:
    """The last lines of one stream; of a traceback that is longer, the first lines too.

    numbers: counts the lines of both streams.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._last: deque[Line] = deque(maxlen=TAIL_LINES)
        self._head: list[bytes] = []  # of the last traceback
        self._length = 0  # lines since its beginning, that one included

    def add(self, lines: Sequence[bytes]) -> None:
        """Keep the last of these; of a progress bar only its last form.

        Of a flood of lines only the last are looked at: it is the event loop that waits meanwhile.
        """
        self._note_traceback(lines)
        if self._last and self._last[-1].text.endswith(b"\r"):
            self._last.pop()
        lasting = (line for line in reversed(lines[:-1]) if not line.endswith(b"\r"))
        for line in reversed([lines[-1], *islice(lasting, TAIL_LINES - 1)]):
            self._last.append(Line(next(self._numbers), _cut(line)))

    def list_lines(self) -> Iterator[Line]:
        """They, in the order in which they came."""
        before = self._length - len(self._last)
        if before > 0 and self._last and self._last[0].text.startswith(b" "):
            number = self._last[0].number
            yield from (Line(number, line) for line in self._head[:before])
            if before > HEAD_LINES:
                yield Line(number, _LEFT_OUT)
        yield from self._last

    def _note_traceback(self, lines: Sequence[bytes]) -> None:
        begin = next((place for place in reversed(range(len(lines))) if lines[place].startswith(_TRACEBACK)), None)
        if begin is not None:
            self._head, self._length = [], 0
        if begin is not None or self._length:
            more = lines[begin or 0 :]
            self._head += map(_cut, more[: max(0, HEAD_LINES - len(self._head))])
            self._length += len(more)


def _cut(line: bytes) -> bytes:
    return line if len(line) <= _LINE_BYTES else line[:_LINE_BYTES] + line[-1:]
