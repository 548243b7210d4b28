"""What ranks tell each other about their snapshots."""

import multiprocessing
from pathlib import Path

import pytest
import torch.distributed as dist

from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots import process_group

DATA = bytes(range(256)) * 40


def share(rank: int, folder: Path) -> None:
    """One of two ranks: rank 1 has what both get."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    process_group._CHUNK_BYTES = 3000  # several, the last of which is shorter
    group = process_group.find_group(2)
    assert (group.rank, group.gather(rank)) == (rank, [0, 1])
    description, data = group.share(1, lambda: (b"text", bytearray(DATA) + b"more", len(DATA)))
    assert (description, bytes(data[: len(DATA)])) == (b"text", DATA)
    with pytest.raises(SnapshotError, match="the snapshot in the memory of rank 0 is damaged"):
        group.share(0, lambda: None)
    dist.destroy_process_group()


def test_both_ranks_get_what_one_has(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=share, args=(rank, tmp_path)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_one_rank_needs_no_group() -> None:
    group = process_group.find_group(1)
    assert group.gather("own") == ["own"]
    assert group.share(0, lambda: (b"text", DATA, 3)) == (b"text", DATA)
    with pytest.raises(SnapshotError, match="is damaged"):
        group.share(0, lambda: None)
