"""The memory of snapshots: a record is complete or absent, and another worker of the slot finds it."""

import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.house.sources import ROOT
from worker_runtime.snapshots.memory import HALVES, NOWHERE, RING, Key, Record, SnapshotMemory

SIZE = 1 << 20
DESCRIPTION, DATA = b"what it is", b"data" * 1000


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = os.memfd_create("memory")
    yield descriptor
    os.close(descriptor)


def keep(memory: SnapshotMemory, key: Key, kept: Key = NOWHERE, data: bytes = DATA) -> None:
    """Save a state over the older one."""

    def copy(mapping: mmap.mmap) -> None:
        mapping[: len(data)] = data

    half = memory.choose(range(HALVES), kept)
    record = Record(key, NOWHERE, 0, 2, b"layout", len(DESCRIPTION), len(data))
    memory.write_state(half, record, DESCRIPTION, copy)


def list_keys(memory: SnapshotMemory) -> list[Key]:
    return sorted(record.key for _, record in memory.list_states())


def test_another_worker_finds_the_two_newest_states(descriptor: int) -> None:
    memory = SnapshotMemory(descriptor)
    assert list_keys(memory) == []
    for number in range(1, 5):
        keep(memory, Key(0, number))
    other = SnapshotMemory(descriptor)
    assert list_keys(other) == [Key(0, 3), Key(0, 4)]
    for half, record in other.list_states():
        found = other.read_state(half, record)
        assert found is not None
        assert (found[0], found[1][: record.data_bytes]) == (DESCRIPTION, DATA)


@pytest.mark.parametrize("part", ["header", "data"])
def test_a_worker_that_ends_while_it_saves_leaves_the_former_state(descriptor: int, part: str) -> None:
    memory = SnapshotMemory(descriptor)
    keep(memory, Key(0, 1))
    keep(memory, Key(0, 2))

    def end(_: object) -> None:
        raise KeyboardInterrupt

    if part == "data":
        with pytest.raises(KeyboardInterrupt):
            memory.write_state(0, Record(Key(0, 3), NOWHERE, 0, 2), DESCRIPTION, end)
    else:
        os.pwrite(descriptor, b"x", 20)  # in the number of the first half's save
    assert list_keys(SnapshotMemory(descriptor)) == [Key(0, 2)]


# A process of its own: one that was forked from pytest may wait for a lock of a thread that it does not have.
SAVES = """
import sys
from worker_runtime.snapshots.memory import HALVES, NOWHERE, Key, Record, SnapshotMemory

memory, size = SnapshotMemory(int(sys.argv[1])), int(sys.argv[2])
for number in range(1, 256):
    def copy(mapping):
        mapping[:size] = bytes([number]) * size

    half = memory.choose(range(HALVES), Key(0, number - 1) if number > 1 else NOWHERE)
    memory.write_state(half, Record(Key(0, number), NOWHERE, 0, 2, b"layout", 4, size), b"what", copy)
    print(flush=True)
"""


@pytest.mark.parametrize("run", range(20))
def test_a_worker_that_is_killed_at_any_moment_leaves_whole_states(descriptor: int, run: int) -> None:
    """Each state is one number, so that a half that was written in part would have two."""
    words = [sys.executable, "-c", SAVES, str(descriptor), str(SIZE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[descriptor], cwd=ROOT) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"\n"
        time.sleep(random.Random(run).uniform(0, 0.01))  # noqa: S311 - a moment, not a secret
        worker.kill()

    memory = SnapshotMemory(descriptor)
    states = dict(memory.list_states())
    assert states
    for half, record in states.items():
        found = memory.read_state(half, record)
        assert found is not None
        assert set(found[1][:SIZE]) == {record.key.number}


def test_a_damaged_description_is_noticed(descriptor: int) -> None:
    memory = SnapshotMemory(descriptor)
    keep(memory, Key(0, 1))
    ((half, record),) = memory.list_states()
    memory.map_half(half, 1)[len(DATA) + 64 - len(DATA) % 64] ^= 1
    assert memory.read_state(half, record) is None


def test_the_save_from_which_a_round_continues_is_not_overwritten_first(descriptor: int) -> None:
    memory = SnapshotMemory(descriptor)
    for number in (8, 9):
        keep(memory, Key(0, number))
    keep(memory, Key(1, 9), kept=Key(0, 8))  # the other rank had not completed the ninth
    assert list_keys(memory) == [Key(0, 8), Key(1, 9)]


def test_a_state_that_grows_leaves_the_other_half_in_place(descriptor: int) -> None:
    memory = SnapshotMemory(descriptor)
    keep(memory, Key(0, 1))
    keep(memory, Key(0, 2), data=DATA * 100)
    other = SnapshotMemory(descriptor)
    sizes = {record.key.number: record.data_bytes for _, record in other.list_states()}
    assert sizes == {1: len(DATA), 2: 100 * len(DATA)}
    assert other.used_bytes < 2_000_000  # though the halves are far from each other


def test_random_states_of_the_save_that_rounds_begin_from_are_kept(descriptor: int) -> None:
    """Each round is killed after the first rank's next save, and before another rank's."""
    origin = Key(0, 3)
    SnapshotMemory(descriptor).write_random(origin, NOWHERE, 0, 2, b"three")
    for number in range(1, 3 * RING):
        SnapshotMemory(descriptor).write_random(Key(number, 4), origin, 0, 2, b"four")
    found = {record.key for record, _ in SnapshotMemory(descriptor).list_random()}
    assert len(found) == RING
    assert origin in found


def test_random_states_of_the_last_saves_are_kept(descriptor: int) -> None:
    memory = SnapshotMemory(descriptor)
    for number in range(1, 8):
        memory.write_random(Key(0, number), NOWHERE, 1, 2, b"random %d" % number)
    found = {record.key.number: data for record, data in SnapshotMemory(descriptor).list_random()}
    assert found == {number: b"random %d" % number for number in range(8 - RING, 8)}
    memory.write_random(Key(0, 9), NOWHERE, 1, 2, bytes(1 << 20))  # too long: the others stay
    assert len(list(memory.list_random())) == RING
