"""The accounts of real ranks that train together."""

import time
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from rendezvous.wire.account_file import read_account
from rendezvous.wire.accounts import Account
from tests.worker_runtime.account.scene import PARTS, WORKER
from tests.worker_runtime.ranks import RankPool
from worker_runtime import account as room  # a module, which the ranks import, and not its copied value

STEPS = 200
MOST_UNKNOWN = 0.02


def train(path: Path, slow: int) -> Account:
    """The account of a rank of a training in which another one is slow."""
    began = time.monotonic()
    own = path / str(hvd.rank())
    room.ACCOUNT.end()  # that of `init()`
    room.ACCOUNT.open(own)
    room.ACCOUNT.cover(0)
    try:
        model = torch.nn.Linear(100, 100)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(STEPS):
            optimizer.zero_grad()
            if hvd.rank() == slow:
                time.sleep(0.005)
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
    finally:
        room.ACCOUNT.end()
    return read_account(own, WORKER, began, time.monotonic(), has_ended=True)


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_rank_is_the_one_that_the_others_have_waited_for(ranks: RankPool, tmp_path: Path, slow: int) -> None:
    accounts = ranks.run(train, tmp_path, slow, size=3)
    for rank, account in enumerate(accounts):
        assert account.steps == STEPS
        known = sum(getattr(account, f"{part}_seconds") for part in PARTS)
        assert 0 <= account.total_seconds - known < MOST_UNKNOWN * account.total_seconds
        if rank != slow:
            late = max(account.waited_for, key=lambda each: each.seconds)
            assert late.rank == slow
            assert late.steps > STEPS / 2


def test_a_rank_that_is_alone_waits_for_nobody(ranks: RankPool, tmp_path: Path) -> None:
    (account,) = ranks.run(train, tmp_path, 0, size=1)
    assert (account.steps, account.waiting_seconds, account.waited_for) == (STEPS, 0, ())
    assert account.compute_seconds
