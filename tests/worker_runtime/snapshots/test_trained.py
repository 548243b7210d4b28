"""Ranks that train different models do not continue from one snapshot."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots.choice import Summary
from worker_runtime.snapshots.memory import Key
from worker_runtime.snapshots.process_group import Alone
from worker_runtime.snapshots.trained import are_different, measure
from worker_runtime.torch import Snapshot

pytestmark = pytest.mark.usefixtures("slot")


def make(seed: int) -> torch.optim.Optimizer:
    torch.manual_seed(seed)
    return torch.optim.SGD(torch.nn.Linear(30, 30).parameters(), lr=0.1)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_next_round_refuses_a_snapshot_of_ranks_with_other_parameters(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    kept: Any = Snapshot(optimizer=make(1), step=0)
    kept.restore()
    for kept.step in range(1, 7):
        kept.save()
    del kept
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")

    def add_a_rank(_: Alone, own: object) -> list[object]:
        """Another rank, which had gone on alone."""
        if not isinstance(own, Summary):
            return [own]
        later = [replace(record, key=Key(0, record.key.number + 9)) for record in own.random]
        random = [replace(record, rank=1, layout=measure([make(seed)])) for record in later]
        return [own, replace(own, states=(), random=tuple(random))]

    monkeypatch.setattr(Alone, "gather", add_a_rank)
    following: Any = Snapshot(optimizer=make(1), step=0)
    if seed == 1:
        assert following.restore()
        assert following.step == 6
    else:
        with pytest.raises(SnapshotError, match="rank 0 and rank 1 train different parameters"):
            following.restore()


def test_the_last_bits_do_not_make_models_different() -> None:
    optimizer = make(1)
    before = measure([optimizer, "text"])
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.mul_(1 + 1e-6)
    assert not are_different(before, measure([optimizer]))
    assert are_different(before, measure([make(2)]))
    assert not are_different(before, measure([torch.nn.Linear(2, 2)]))
    odd = torch.nn.Parameter(torch.zeros(2, dtype=torch.float8_e4m3fn), requires_grad=False)
    optimizer.add_param_group({"params": [odd, torch.nn.Parameter(torch.zeros(2, device="meta"))]})
    assert not are_different(before, measure([optimizer]))
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].fill_(math.nan)
    assert not are_different(before, measure([optimizer]))
