"""Gives a worker those of the program's modules that its host does not have, or has with other contents."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path


def add_modules(units: Sequence[tuple[str, Mapping[str, bytes]]], place: Path) -> list[str]:
    """Write what is missing under a folder of this worker's own; what to put first on the search path.

    Args:
        units: of each module or package the folder that it lies in, and its sources by their path in that folder.
        place: goes with the job.
    """
    added: list[str] = []
    for folder, sources in units:
        if all(_holds(Path(folder, name), source) for name, source in sources.items()):
            continue
        copy = place / folder.lstrip("/")
        for name, source in sources.items():
            if not _holds(copy / name, source):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes(source)
        added.append(str(copy))
    if added:
        importlib.invalidate_caches()
    return list(dict.fromkeys(added))


def _holds(file: Path, source: bytes) -> bool:
    try:
        return file.read_bytes() == source
    except OSError:
        return False
