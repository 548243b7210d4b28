"""The accounts of real ranks that train together."""

import time
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from rendezvous.wire.account_file import read_account
from rendezvous.wire.accounts import Account
from tests.worker_runtime.account.scene import PARTS, WORKER
from tests.worker_runtime.ranks import RankPool, ask_child
from worker_runtime import account as room  # a module, which the ranks import, and not its copied value

STEPS = 100
SLOW_SECONDS = 0.02  # longer than most pauses of a busy machine


def begin(path: Path) -> None:
    """Count from now on in this file."""
    room.ACCOUNT.end()  # that of `init()`
    room.ACCOUNT.open(path)
    room.ACCOUNT.cover(0)


def train(path: Path, slow: int) -> tuple[Account, float]:
    """The account of a rank of a training in which another one is slow, and the seconds since its last step began."""
    began = time.monotonic()
    own = path / str(hvd.rank())
    begin(own)
    try:
        model = torch.nn.Linear(100, 100)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(STEPS):
            optimizer.zero_grad()
            if hvd.rank() == slow:
                time.sleep(SLOW_SECONDS)
            model(torch.ones(1, 100)).sum().backward()
            last = time.monotonic()
            optimizer.step()
    finally:
        room.ACCOUNT.end()
    ended = time.monotonic()
    return read_account(own, WORKER, began, ended, has_ended=True), ended - last


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_rank_is_the_one_that_the_others_have_waited_for(ranks: RankPool, tmp_path: Path, slow: int) -> None:
    accounts = ranks.run(train, tmp_path, slow, size=3)
    for rank, (account, last_seconds) in enumerate(accounts):
        assert account.steps == STEPS
        known = sum(getattr(account, f"{part}_seconds") for part in PARTS)
        assert 0 <= account.total_seconds - known <= last_seconds  # only what follows the last step is unknown
        if rank != slow:
            # By steps: one pause of a busy machine may be longer than all waits for the slow rank.
            assert max(account.waited_for, key=lambda each: each.steps).rank == slow


def test_a_rank_that_is_alone_waits_for_no_other(ranks: RankPool, tmp_path: Path) -> None:
    ((account, _),) = ranks.run(train, tmp_path, 0, size=1)
    assert (account.steps, account.waiting_seconds, account.waited_for) == (STEPS, 0, ())
    assert account.compute_seconds


def test_each_kind_of_step_counts_once(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> int:
        path = tmp_path / str(hvd.rank())
        begin(path)
        model = torch.nn.Linear(3, 1)

        def make(**options: object) -> torch.optim.Optimizer:
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), **options)

        def differentiate() -> torch.Tensor:
            model.zero_grad()
            loss: torch.Tensor = model(torch.ones(1, 3)).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types
            return loss

        optimizer = make()
        differentiate()
        optimizer.step()
        optimizer.step(differentiate)  # type: ignore[arg-type]  # torch wants a number
        differentiate()
        optimizer.synchronize()  # type: ignore[attr-defined]  # of Horovod
        with optimizer.skip_synchronize():  # type: ignore[attr-defined]  # of Horovod
            optimizer.step()
        adasum = make(op=hvd.Adasum)
        differentiate()
        adasum.step()
        room.ACCOUNT.end()
        return read_account(path, WORKER, 0.0, time.monotonic()).steps

    assert ranks.run(body, size=2) == [4, 4]


def test_a_process_that_the_program_forks_writes_nothing(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> None:
        path = tmp_path / str(hvd.rank())
        begin(path)
        room.ACCOUNT.end_step()
        before = path.read_bytes()

        def count() -> None:
            room.ACCOUNT.enter(room.Part.WAITING)
            room.ACCOUNT.end_step()
            room.ACCOUNT.end()

        ask_child(count)
        assert path.read_bytes() == before
        room.ACCOUNT.end_step()
        assert path.read_bytes() != before
        room.ACCOUNT.end()

    ranks.run(body, size=2)
