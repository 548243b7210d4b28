"""What an agent keeps for its launcher until that has shown it: messages with numbers, in memory and on the disk.

The newest messages are in memory, and the oldest, which are sent next. Those between them are in files of the agent's
folder, which only its user can enter. Beyond a limit the oldest are dropped, and a line says how many bytes that were.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rendezvous.wire import codec
from rendezvous.wire.orders import Alert

LIMIT_BYTES = 256 * 1024 * 1024
PART_BYTES = 4 * 1024 * 1024
SENT_BYTES = 1024 * 1024  # in one call, whose size is limited


class _Part:
    """Consecutive messages, in memory or in a file.

    Args:
        first: the number of the first one.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.bytes = 0
        self.messages: deque[bytes] = deque()
        self._count = 0
        self._file: Path | None = None

    @property
    def following(self) -> int:
        """The number after its last message."""
        return self.first + (self._count or len(self.messages))

    def add(self, message: bytes) -> None:
        """Add one that is in memory."""
        self.messages.append(message)
        self.bytes += len(message)

    def write(self, file: Path) -> None:
        """Move it into a file.

        Raises:
            OSError: it cannot be written.
        """
        file.touch(mode=0o600)
        try:
            file.write_bytes(b"".join(map(codec.frame, self.messages)))
        except OSError:
            file.unlink(missing_ok=True)
            raise
        self._file, self._count = file, len(self.messages)
        self.messages.clear()

    def read(self) -> None:
        """Move it into memory.

        Raises:
            OSError: it cannot be read.
        """
        if self._file is not None:
            self.messages.extend(codec.FrameReader().feed(self._file.read_bytes()))
            self.remove()

    def drop(self, number: int) -> None:
        """Forget the messages up to this number; it is in memory."""
        while self.messages and self.first <= number:
            self.bytes -= len(self.messages.popleft())
            self.first += 1

    def remove(self) -> None:
        """Remove its file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file, self._count = None, 0


class Spool:
    """The messages that the launcher has not shown yet.

    Args:
        folder: for files.
        limit_bytes: how much is kept.
        part_bytes: how much is in one file, and twice in memory.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES, part_bytes: int = PART_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._part_bytes = part_bytes
        self._parts: deque[_Part] = deque([_Part(1)])
        self._bytes = 0  # of all but the last
        self._lost_bytes = 0  # of which the launcher was not told yet
        self._lost_number = 0  # of the last message that was dropped

    def __bool__(self) -> bool:
        """Whether something is kept."""
        return self._lost_bytes > 0 or self._last.following > self._parts[0].first

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._bytes + self._last.bytes

    @property
    def next_number(self) -> int:
        """The number of the next message."""
        return self._last.following

    def add(self, message: bytes) -> None:
        """Keep one more message."""
        if self._last.bytes >= self._part_bytes:
            self._begin_part()
        self._last.add(message)

    def peek(self) -> tuple[int, Sequence[bytes]]:
        """The number of the oldest message, and as many from there on as one call may carry."""
        if self._lost_bytes:
            return self._lost_number, [codec.pack_agent_message(Alert(self._describe_loss()))]
        part = self._parts[0]
        messages: list[bytes] = []
        size = 0
        for message in part.messages:
            size += len(message)
            if messages and size > SENT_BYTES:
                break
            messages.append(message)
        return part.first, messages

    def drop(self, number: int) -> None:
        """Forget all messages up to this number: they were shown."""
        if self._lost_bytes and number >= self._lost_number:
            self._lost_bytes = 0
        part = self._parts[0]
        before = part.bytes
        part.drop(number)
        if part is not self._last:
            self._bytes -= before - part.bytes
            if not part.messages:
                self._end_part()

    @property
    def _last(self) -> _Part:
        return self._parts[-1]

    def _begin_part(self) -> None:
        last = self._last
        self._bytes += last.bytes
        if last is not self._parts[0]:
            try:
                last.write(self._folder / f"spool.{last.first}")
            except OSError:  # the disk is full: it stays in memory, and older ones go
                self._limit_bytes = min(self._limit_bytes, self._bytes)
        self._parts.append(_Part(last.following))
        while self._bytes > self._limit_bytes:
            self._lose_part()

    def _lose_part(self) -> None:
        """Drop the oldest part, which the launcher has not shown."""
        oldest = self._parts[0]
        self._lost_bytes += oldest.bytes
        self._lost_number = oldest.following - 1
        self._bytes -= oldest.bytes
        self._end_part()

    def _end_part(self) -> None:
        """Remove the oldest part, and send the next one."""
        self._parts.popleft().remove()
        try:
            self._parts[0].read()
        except OSError:  # another program has removed it
            self._lose_part()

    def _describe_loss(self) -> str:
        return (
            f"{self._lost_bytes} bytes of output were dropped, as nobody took them for too long: an agent keeps "
            f"{self._limit_bytes // (1024 * 1024)} MB"
        )
