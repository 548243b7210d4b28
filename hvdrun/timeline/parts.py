"""Reads the events of a timeline one at a time, from all its files; the end of a file may be cut off."""

import json
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.startup.paths import open_regular

_LARGEST_LINE = 1 << 20


def list_parts(path: Path) -> list[Path]:
    """The parts of the job whose timeline begins in this file, in order.

    Raises:
        UsageError: it is no timeline, or cannot be read.
    """
    job = _find_job(path)
    if job is None:
        raise UsageError(f"{str(path)!r} is no timeline: give a file that hvdrun --timeline has written.")
    parts: list[tuple[int, Path]] = []
    for other in path.parent.glob(f"{escape(path.name)}.*"):
        number = other.name.removeprefix(f"{path.name}.")
        if number.isdecimal() and _find_job(other) == job:
            parts.append((int(number), other))
    return [path, *(other for _, other in sorted(parts))]


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one part. Each is a line.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with open_regular(path) as file:
            while line := file.readline(_LARGEST_LINE):
                try:
                    event = json.loads(line.decode(errors="replace").strip().strip("[],"))
                except ValueError:  # the brackets, or the end of a file whose writer was killed
                    continue
                if isinstance(event, dict):
                    yield event
    except OSError as error:
        raise UsageError(f"the timeline {str(path)!r} cannot be read: {error.strerror}.") from None


def _find_job(path: Path) -> str | None:
    """The job whose timeline has this part, as the first event names it; None if the file is no such part."""
    arguments = next(read_events(path), {}).get("args")
    if isinstance(arguments, dict) and "start_time_since_epoch_in_micros" in arguments:
        return str(arguments.get("job", ""))
    return None
