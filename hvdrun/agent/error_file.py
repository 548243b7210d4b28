"""What a program's main function raised, as `@record` of torch.distributed.elastic writes it into a file."""

import json
import os
import stat
from pathlib import Path

from rendezvous.bootstrap import name_error_file
from rendezvous.core.model import Worker

_MOST_BYTES = 1024 * 1024
_MOST_CHARACTERS = 500  # of the message


def take_message(socket: Path, worker: Worker) -> str:
    """The message in a worker's file, in one line, "" where there is none; the file is removed.

    The worker may have written anything there.
    """
    path = name_error_file(socket, worker)
    try:
        data = _read(path)
        path.unlink()
        written = json.loads(data)["message"]
        message = written
        if isinstance(written, dict):
            message = written["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    text = " ".join(str(message).split())
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS - 1]}…"


def _read(path: Path) -> bytes:
    """The beginning of a regular file; no other one, which may block.

    Raises:
        OSError: there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return file.read(_MOST_BYTES)
        return b""
