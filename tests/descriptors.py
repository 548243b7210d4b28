"""The file descriptors of this process, and none that is free."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def list_descriptors() -> set[int]:
    """The open descriptors of this process."""
    listed = list(Path("/proc/self/fd").iterdir())  # with the descriptor that lists them
    return {int(entry.name) for entry in listed if entry.exists()}


def list_settled_descriptors() -> set[int]:
    """The open descriptors without those that only garbage of earlier tests holds: none is closed by itself later."""
    gc.collect()
    return list_descriptors()


def list_open_files(folder: Path) -> list[Path]:
    """The files in a folder that this process has open."""
    found = (Path(f"/proc/self/fd/{descriptor}").resolve() for descriptor in list_descriptors())
    return [path for path in found if path.is_relative_to(folder)]


@contextmanager
def none_free(but: int = 0) -> Iterator[None]:
    """In its block, this process can open no descriptor, but for so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    while len(fillers) <= but:
        fillers.append(os.dup(0))
    limit = fillers[-1]
    for filler in fillers:
        os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
