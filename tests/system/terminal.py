"""A terminal with a program on it, as a person has it: keys go in, and the screen shows what came out."""

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

_CHUNK = 65536
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*(?P<act>[@-~])")
CTRL_C, CTRL_Z = "\x03", "\x1a"


class Terminal:
    """Runs a program in a session of its own whose controlling terminal this is; a context manager that ends it.

    It can do what a status line needs: carriage returns and the erasure of the rest of a line.
    """

    def __init__(self, *words: str, directory: Path, environment: Mapping[str, str]) -> None:
        self._keyboard, theirs = pty.openpty()
        self._arrived = threading.Condition()
        self._bytes = bytearray()
        self._has_ended = False
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            cwd=directory,
            env={"TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._keyboard, keys.encode())

    def text(self) -> str:
        """All that has been written to it, control characters included."""
        with self._arrived:
            return self._bytes.decode(errors="replace")

    def screen(self) -> list[str]:
        """The lines that it shows now, the last one last."""
        return draw(self.text())

    def wait_for(self, pattern: str, limit_seconds: float, count: int = 1) -> None:
        """Return when a regular expression has matched so many times in what was written.

        Raises:
            AssertionError: it does not within the limit.
        """
        compiled = re.compile(pattern, re.MULTILINE)

        def is_decided() -> bool:
            return self._has_ended or len(compiled.findall(self.text())) >= count

        with self._arrived:
            self._arrived.wait_for(is_decided, limit_seconds)
        if len(compiled.findall(self.text())) < count:
            raise AssertionError(f"waited for {pattern!r} {count} times, but the terminal has:\n{self.text()!r}")

    def wait(self, limit_seconds: float) -> int:
        """The program's exit code, when all it wrote has been read."""
        returncode = self.process.wait(limit_seconds)
        self._reader.join(limit_seconds)
        return returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(60)
        os.close(self._keyboard)

    def _read(self) -> None:
        with suppress(OSError):  # the last program that had the terminal open has ended
            while chunk := os.read(self._keyboard, _CHUNK):
                with self._arrived:
                    self._bytes += chunk
                    self._arrived.notify_all()
        with self._arrived:
            self._has_ended = True
            self._arrived.notify_all()


def draw(text: str) -> list[str]:
    """What a terminal wide enough shows of a text, without colours and without an empty last line."""
    lines = [""]
    column = 0
    position = 0
    while position < len(text):
        line = lines[-1]
        sequence = _SEQUENCE.match(text, position)
        character = text[position]
        position = sequence.end() if sequence else position + 1
        if sequence:
            lines[-1] = line[:column] if sequence["act"] == "K" else line
        elif character == "\r":
            column = 0
        elif character == "\n":
            lines.append("")
            column = 0
        else:
            lines[-1] = line[:column].ljust(column) + character + line[column + 1 :]
            column += 1
    return lines if lines[-1] else lines[:-1]
