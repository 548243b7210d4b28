"""The memory of an account: that of a file beside the agent's socket, so that the agent can read it."""

import mmap
import os
from pathlib import Path

from worker_runtime.rendezvous import ACCOUNT_BYTES


def make_memory() -> "memoryview[float]":
    """An array of doubles that only this process sees."""
    return memoryview(bytearray(ACCOUNT_BYTES)).cast("d")


def map_memory(path: Path | None) -> "memoryview[float]":
    """The file as an array of doubles; what `make_memory` makes if there is no file, or no space for it."""
    if path is None:
        return make_memory()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return make_memory()
    try:
        os.posix_fallocate(descriptor, 0, ACCOUNT_BYTES)  # else a full disk would kill this process later
        return memoryview(mmap.mmap(descriptor, ACCOUNT_BYTES)).cast("d")
    except OSError:
        return make_memory()
    finally:
        os.close(descriptor)
