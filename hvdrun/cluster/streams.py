"""Brings what a job prints to where the program prints: its own descriptors, or the objects that stand for them.

In a notebook or under pytest these are not the descriptors 1 and 2. There the launcher writes into pipes, which the
program reads while it waits for the job, so that the output belongs to the cell or the test that has called.
"""

import codecs
import os
import sys
from contextlib import suppress
from typing import TextIO

_CHUNK_BYTES = 64 * 1024


class Stream:
    """One of the program's streams, "stdout" or "stderr".

    writer: the descriptor to give to the launcher; closed by `let_go`.
    reader: what to read, where that is a pipe.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.reader: int | None = None
        self._inherits = _is_own_descriptor(name)
        self._is_open = not self._inherits
        if self._inherits:
            self.flush()
            self.writer = 1 if name == "stdout" else 2
            return
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def let_go(self) -> None:
        """The launcher has its end."""
        if self._is_open:
            self._is_open = False
            os.close(self.writer)

    def flush(self) -> None:
        """Let what the program has printed come before what the job prints from now on."""
        if self._inherits:
            getattr(sys, f"__{self._name}__").flush()

    def pump(self) -> None:
        """Print what has come."""
        while self.reader is not None:
            try:
                data = os.read(self.reader, _CHUNK_BYTES)
            except BlockingIOError:
                return
            self._print(self._decode(data, not data))
            if not data:
                self.close()

    def close(self) -> None:
        """Read no more."""
        reader, self.reader = self.reader, None
        if reader is not None:
            os.close(reader)

    def _print(self, text: str) -> None:
        target: TextIO | None = getattr(sys, self._name)
        if target is not None and text:
            with suppress(ValueError):  # it is closed
                target.write(text)
                target.flush()


def _is_own_descriptor(name: str) -> bool:
    """The stream is that of the process itself."""
    stream, number = getattr(sys, name), 1 if name == "stdout" else 2
    if stream is None or stream is not getattr(sys, f"__{name}__"):
        return False
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError):
        return False
