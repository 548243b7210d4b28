"""Errors of a host with too little memory for a snapshot."""

import mmap
from collections.abc import Callable

from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots.free_memory import describe, find_shortage
from worker_runtime.snapshots.memory import HALVES, Record, SnapshotMemory

_SHORTAGE = "two copies of the state need {} on each host, and {}: use a host with more memory, or no Snapshot"


def refuse_shortage(memory: SnapshotMemory, needed_bytes: int, clone_bytes: int = 0) -> None:
    """Refuse a state for which there is too little memory.

    Args:
        memory: what the state goes into; what that has already is not needed again.
        needed_bytes: of two copies.
        clone_bytes: what a clone of the tensors takes besides.

    Raises:
        SnapshotError: there is too little.
    """
    if (shortage := find_shortage(max(0, needed_bytes + clone_bytes - memory.used_bytes))) is not None:
        raise SnapshotError(_SHORTAGE.format(describe(needed_bytes), shortage))


def write_state(
    memory: SnapshotMemory, half: int, record: Record, description: bytes, copy: Callable[[mmap.mmap], None]
) -> None:
    """Keep a state in a half, into which `copy` writes the data.

    Raises:
        SnapshotError: there is no memory.
    """
    try:
        memory.write_state(half, record, description, copy)
    except OSError as error:
        needed = describe(HALVES * record.data_bytes)
        raise SnapshotError(_SHORTAGE.format(needed, f"the kernel gives none ({error.strerror})")) from error
