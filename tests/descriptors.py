"""A process without a free file descriptor."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def list_descriptors() -> set[int]:
    """The open descriptors of this process."""
    listed = list(Path("/proc/self/fd").iterdir())  # with the descriptor that lists them
    return {int(entry.name) for entry in listed if entry.exists()}


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
