"""`Snapshot` on a host that has none yet: `restore()` gives it the copy of the others, before its first save."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots import free_memory, shortage
from worker_runtime.snapshots.process_group import Alone
from worker_runtime.torch import Snapshot, snapshot


class BesideAnother:
    """Rank 1 of two: rank 0 is on a host that has this snapshot.

    Args:
        memory: the descriptor of the memory of rank 0.
    """

    rank, size = 1, 2

    def __init__(self, memory: int) -> None:
        self._memory = snapshot.SnapshotMemory(memory)

    def gather(self, value: Any) -> list[Any]:
        """See `Group`."""
        if not isinstance(value, snapshot.Summary):
            return [{}, value]
        records = tuple(record for _, record in self._memory.list_states())
        return [snapshot.Summary(value.names, records), value]

    def share(self, source: int, read: Callable[[], object]) -> tuple[bytes, Any]:
        """See `Group`."""
        assert (source, read()) == (0, None)
        half, record = next(self._memory.list_states())
        found = self._memory.read_state(half, record)
        assert found is not None
        return found[0], bytearray(found[1][: record.data_bytes])


@pytest.fixture
def newcomer(slot: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[BesideAnother]:
    """The group of the next round, in which this process is on another host than the one that has saved."""
    kept = Snapshot(weight=torch.arange(5.0), flags=torch.ones(3, dtype=torch.bool), step=0)
    assert not kept.restore()
    kept.step = 7
    kept.save()
    del kept
    descriptor = os.memfd_create("hvdrun-snapshot")
    monkeypatch.setenv("HVD_SNAPSHOT_FD", str(descriptor))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    group = BesideAnother(slot)
    monkeypatch.setattr(snapshot, "find_group", lambda _: group)
    yield group
    os.close(descriptor)


def restore() -> Any:
    """What this round begins with."""
    kept = Snapshot(weight=torch.zeros(5), flags=torch.zeros(3, dtype=torch.bool), step=0)
    assert kept.restore()
    assert (kept.weight.tolist(), kept.flags.tolist(), kept.step) == ([0, 1, 2, 3, 4], [True] * 3, 7)
    return kept


@pytest.mark.usefixtures("newcomer")
@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_a_new_host_has_the_copy_before_its_first_save(monkeypatch: pytest.MonkeyPatch, local_rank: str) -> None:
    """The first worker of the host has it."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    restore()

    monkeypatch.setattr(snapshot, "find_group", lambda _: Alone())  # the others are lost
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    if local_rank == "1":
        assert not Snapshot(weight=0, flags=0, step=0).restore()
    else:
        restore()


@pytest.mark.usefixtures("newcomer")
def test_a_new_host_without_the_memory_for_a_copy_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 0 kB\n")
    monkeypatch.setattr(shortage, "find_shortage", lambda needed: free_memory.find_shortage(needed, tmp_path))
    monkeypatch.setattr(snapshot.SnapshotMemory, "used_bytes", 0)
    with pytest.raises(SnapshotError, match=r"two copies of the state need .* and the memory"):
        restore()
