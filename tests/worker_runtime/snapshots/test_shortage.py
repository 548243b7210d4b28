"""A host with too little memory for a snapshot gets an error that says how much is needed."""

import errno
import os
import re
from pathlib import Path

import pytest

from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots import free_memory, shortage
from worker_runtime.snapshots.memory import NOWHERE, Record, SnapshotMemory
from worker_runtime.snapshots.shortage import refuse_shortage, write_state

MIB = 1024 * 1024


def test_memory_that_is_used_already_is_not_needed_again(
    slot: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1024 kB\n")
    monkeypatch.setattr(shortage, "find_shortage", lambda needed: free_memory.find_shortage(needed, tmp_path))
    memory = SnapshotMemory(slot)
    refuse_shortage(memory, memory.used_bytes + MIB)
    with pytest.raises(SnapshotError, match=r"need .* on each host, and the memory of this host leaves 1024 KiB"):
        refuse_shortage(memory, memory.used_bytes + MIB, clone_bytes=1)


def test_an_error_of_the_kernel_becomes_one_of_snapshots(slot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SnapshotMemory(slot)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    record = Record(NOWHERE, NOWHERE, 0, 1, data_bytes=MIB)
    sentence = "two copies of the state need 2048 KiB on each host, and the kernel gives none (No space left on device)"
    with pytest.raises(SnapshotError, match=re.escape(sentence)):
        write_state(memory, 0, record, b"", fail)
