"""The steps of a training with MXNet in the account of a worker's time."""

import time
from pathlib import Path

import pytest

import worker_runtime.mxnet as hvd
from rendezvous.wire.account_file import read_account
from tests.worker_runtime.account.scene import WORKER
from tests.worker_runtime.mxnet.training import STEPS, WAYS, train
from tests.worker_runtime.ranks import RankPool
from worker_runtime import account as room


@pytest.mark.parametrize("way", WAYS)
def test_each_step_counts_once(ranks: RankPool, tmp_path: Path, way: str) -> None:
    def body() -> int:
        path = tmp_path / str(hvd.rank())
        room.ACCOUNT.end()  # that of `init()`
        room.ACCOUNT.open(path)
        room.ACCOUNT.cover(0)
        train(way, "sgd", hvd.rank(), hvd.size(), hybrid=False)
        room.ACCOUNT.end()
        return read_account(path, WORKER, 0.0, time.monotonic()).steps

    steps = STEPS
    if way == "module":  # trains for two epochs
        steps *= 2
    assert ranks.run(body, size=2) == [steps, steps]
