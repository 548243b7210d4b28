"""The memory of snapshots: one worker writes, and the worker in its place finds it in the next round."""

import os
from dataclasses import replace

import pytest

from hvdrun.agent.snapshot_memories import SnapshotMemories
from rendezvous.bootstrap import SNAPSHOT_FD, torch_job_environment
from rendezvous.core.model import Round, Slot, Worker
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import make_launches
from tests.hvdrun.agent.test_fork_spawner import spawning

LAUNCHES = make_launches(2)
RESTARTS = torch_job_environment(3)
# Adds a letter to the memory, and prints what it has then.
WRITES = """
import os
memory = int(os.environ["HVD_SNAPSHOT_FD"])
os.lseek(memory, 0, os.SEEK_END)
os.write(memory, b"x" if os.environ["HOROVOD_RANK"] == "0" else b"y")
print(os.pread(memory, 10, 0).decode(), os.get_inheritable(memory))
"""
LACKS = "import os; print('HVD_SNAPSHOT_FD' in os.environ)"


@pytest.mark.parametrize("prefork", [True, False])
@alone
async def test_the_next_worker_of_a_slot_finds_what_the_last_one_wrote(*, prefork: bool) -> None:
    async with spawning(prefork=prefork, script=WRITES, variables=RESTARTS) as room:
        first, other = LAUNCHES
        texts = [await room.run(launch) for launch in (first, other, replace(first, worker=first.worker))]
        can_inherit = not prefork  # an executed one: Snapshot forbids it there
        assert texts == [f"{letters} {can_inherit}\n" for letters in ("x", "y", "xx")]


@pytest.mark.parametrize("prefork", [True, False])
@alone
async def test_a_worker_of_a_job_without_restarts_has_no_memory(*, prefork: bool) -> None:
    async with spawning(prefork=prefork, script=LACKS) as room:
        assert await room.run(LAUNCHES[0]) == "False\n"


def test_each_place_has_one_memory_and_all_are_given_back_at_the_end() -> None:
    before = len(list_settled_descriptors())
    memories = SnapshotMemories({os.fsencode(name): os.fsencode(value) for name, value in RESTARTS.items()})
    found = [memories.find(LAUNCHES[index]) for index in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
    assert len(list_descriptors()) == before + 2
    memories.close()
    assert len(list_descriptors()) == before
    assert SnapshotMemories({}).find(LAUNCHES[0]) is None
    assert SNAPSHOT_FD in WRITES


def test_the_first_worker_of_a_host_finds_the_state_also_where_its_slot_is_another_one() -> None:
    memories = SnapshotMemories({os.fsencode(name): os.fsencode(value) for name, value in RESTARTS.items()})
    first, other = (replace(launch, round=Round(0, 0, 1)) for launch in LAUNCHES)
    kept = memories.find(first)
    moved = replace(first, worker=Worker(other.worker.slot, 2), round=Round(1, 0, 1))  # the first slot is closed
    alone_there = replace(first, worker=Worker(Slot("a", 0), 2), round=None)
    try:
        assert memories.find(moved) == kept != memories.find(other)
        assert memories.find(alone_there) != kept
    finally:
        memories.close()


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), AttributeError("memfd_create")])
def test_a_host_without_files_in_memory_runs_its_workers_without_memory(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_name: str) -> int:
        raise error

    monkeypatch.setattr(os, "memfd_create", fail)
    memories = SnapshotMemories({os.fsencode(name): os.fsencode(value) for name, value in RESTARTS.items()})
    assert memories.find(LAUNCHES[0]) is None
