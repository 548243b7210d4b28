"""What a console writes to, a pipe or a terminal, with the reader's end."""

import os
import pty
from contextlib import suppress
from typing import Self

from rendezvous.core.model import Slot, Worker
from rendezvous.wire.orders import OutputStream


class Screen:
    """The two ends of a terminal; files, since a bare descriptor closed twice may belong to another file by then."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reader = os.fdopen(reading, "rb")
        self.writer = os.fdopen(writing, "wb", buffering=0)
        self.writing = writing
        self.descriptors = dict.fromkeys(OutputStream, writing)

    @classmethod
    def pipe(cls) -> Self:
        """One of a pipe."""
        return cls(*os.pipe())

    @classmethod
    def terminal(cls) -> Self:
        """One of a terminal."""
        return cls(*pty.openpty())

    def read(self) -> str:
        """Everything that was written; nothing more can be."""
        self.writer.close()
        chunks = []
        with suppress(OSError):  # the end of a terminal, which may give what was written in pieces
            while chunk := self.reader.read1(100_000):
                chunks.append(chunk)
        return b"".join(chunks).decode()

    def close(self) -> None:
        """Give both ends back."""
        self.writer.close()
        self.reader.close()


def at(rank: int, host: str = "a") -> Worker:
    """The worker that had this rank first."""
    return Worker(Slot(host, rank), 1)
