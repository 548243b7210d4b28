"""The steps of a training with MXNet in the account of a worker's time."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import worker_runtime.mxnet as hvd
from rendezvous.wire.account_file import read_account
from tests.worker_runtime.account.scene import WORKER
from tests.worker_runtime.mxnet.training import MAKERS, STEPS, WAYS, make_parameters, make_sgd, subtract, train
from tests.worker_runtime.ranks import RankPool
from worker_runtime import account as room


def count_steps(path: Path, train_once: Callable[[], object]) -> int:
    """The steps of a training in the account of this rank."""
    room.ACCOUNT.end()  # that of `init()`
    room.ACCOUNT.open(path)
    room.ACCOUNT.cover(0)
    train_once()
    room.ACCOUNT.end()
    return read_account(path, WORKER, 0.0, time.monotonic()).steps


@pytest.mark.parametrize("way", WAYS)
def test_each_step_counts_once(ranks: RankPool, tmp_path: Path, way: str) -> None:
    def body() -> int:
        return count_steps(tmp_path / str(hvd.rank()), lambda: train(way, "sgd", hvd.rank(), hvd.size(), hybrid=False))

    steps = STEPS
    if way == "module":  # trains for two epochs
        steps *= 2
    assert ranks.run(body, size=2) == [steps, steps]


def test_a_step_of_two_dtypes_counts_once(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> int:
        params = make_parameters((2,), (3,), dtypes=["float32", "float64"])
        trainer = make_sgd(params, MAKERS["optimizer"])
        return count_steps(tmp_path / str(hvd.rank()), lambda: subtract(trainer, params, 1, 1, 1))

    assert ranks.run(body) == [3, 3]
