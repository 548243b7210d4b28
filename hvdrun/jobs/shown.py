"""Which messages of its agents a detached job has shown, so that another server of the job shows none of them twice.

An agent's messages are numbered, and it keeps them until they are acknowledged. They are acknowledged when they are in
the log. A server that is killed may have written some into the log that it has not acknowledged. So the numbers are
kept with the place in the log: what workers have written behind it comes again, and is removed.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hvdrun.jobs.log import is_of_worker, list_logs, name_log

_NAME = "shown.json"
_LEAST_BYTES = 4096  # the record is one write, whose rest is blank


class Shown:
    """The numbers of the last messages that were shown, by the agents' identities.

    Args:
        folder: of the job.
        locate: the log's present file, and how long it is.
    """

    def __init__(self, folder: Path, locate: Callable[[], tuple[int, int]]) -> None:
        self._locate = locate
        self._numbers = read_shown(folder)
        self._descriptor = os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, identity: str, number: int) -> None:
        """The messages of this agent up to this number are in the log. For the thread that writes the log."""
        self._numbers[identity] = number
        log, size = self._locate()
        text = json.dumps({"log": log, "bytes": size, "numbers": self._numbers}).encode()
        os.pwrite(self._descriptor, text.ljust(max(_LEAST_BYTES, len(text))), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_shown(folder: Path) -> dict[str, int]:
    """The numbers that another server of the job has left."""
    return dict(_read(folder).get("numbers", {}))


def remove_unacknowledged(folder: Path) -> None:
    """Remove from the log what workers have written behind the last acknowledged message: it comes again.

    Raises:
        OSError: the log cannot be written.
    """
    record = _read(folder)
    number, size = int(record.get("log", 0)), int(record.get("bytes", 0))
    for each in list_logs(folder):
        if each < number:
            continue
        path = name_log(folder, each)
        with path.open("r+b") as log:
            log.seek(size if each == number else 0)
            place = log.tell()
            kept = [line for line in log if not is_of_worker(line)]
            log.seek(place)
            log.writelines(kept)
            log.truncate()


def _read(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError):  # none has been acknowledged, or the record is damaged
        return dict(json.loads((folder / _NAME).read_text(encoding="utf-8")))
    return {}
