"""Cuts one worker's stream into lines. Pure: however the bytes were chopped up on their way, the lines are the same."""

MAX_LINE_BYTES = 1024 * 1024


class LineSplitter:
    r"""One stream's unfinished line, and what it takes to finish it.

    A line ends with `\n`, `\r\n` or `\r`: progress bars come piece by piece. A `\r` at the end of the known bytes waits
    for the next byte, which may be its `\n`. A line longer than `max_line_bytes` is cut there, a newline added, so that
    a worker that never ends its line cannot fill the launcher's memory.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._parts: list[bytes] = []  # the unfinished line, not joined until it ends: joining each time is quadratic
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the lines that are now complete, each with its line end."""
        if not data:
            return []
        may_end = b"\n" in data or b"\r" in data or bool(self._parts and self._parts[-1].endswith(b"\r"))
        self._parts.append(data)
        self._size += len(data)
        if not may_end and self._size <= self._max_line_bytes:
            return []
        *lines, last = b"".join(self._parts).splitlines(keepends=True)
        if self._size > self._max_line_bytes:
            lines = [piece for line in lines for piece in self._cut(line)]
            *pieces, last = self._cut(last)
            lines.extend(pieces)
        if last.endswith(b"\n"):
            lines.append(last)
            last = b""
        self._parts = [last] if last else []
        self._size = len(last)
        return lines

    @property
    def is_inside_a_line(self) -> bool:
        """A line has begun."""
        return bool(self._parts)

    @property
    def unfinished(self) -> bytes:
        r"""The line that has begun; without a last `\r`, which may belong to its end."""
        return b"".join(self._parts).removesuffix(b"\r")

    def finish(self) -> list[bytes]:
        """The stream has ended: return its last line, with a newline added, where it had none."""
        rest = b"".join(self._parts)
        self._parts = []
        self._size = 0
        return [rest + b"\n"] if rest else []

    def _cut(self, line: bytes) -> list[bytes]:
        """Cut a line whose text is too long; the line end belongs to the last piece."""
        size = self._max_line_bytes
        length = len(line.rstrip(b"\r\n"))
        if length <= size:
            return [line]
        cuts = range(0, length, size)
        pieces = [line[start : start + size] + b"\n" for start in cuts[:-1]]
        return [*pieces, line[cuts[-1] :]]
