"""The processes that play ranks in tests."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

import worker_runtime.torch as hvd
from tests.house.sources import ROOT
from tests.waiting import wait_until
from tests.worker_runtime.ranks import RankPool, Ranks

BLOCKS = """
import time
from tests.worker_runtime.ranks import Ranks

def block():
    import os
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)

Ranks(1).run(block, size=1)
"""


def test_ranks_find_the_modules_of_tests_wherever_hvdrun_is_installed() -> None:
    with Ranks(1) as ranks:
        assert ranks.run(lambda: os.environ["PYTHONPATH"].split(os.pathsep)[0], size=1) == [str(ROOT)]


def test_a_rank_that_blocks_ends_with_the_tests() -> None:
    with subprocess.Popen([sys.executable, "-c", BLOCKS], cwd=ROOT, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        rank = Path("/proc") / tests.stdout.readline().decode().strip()
        assert rank.exists()
        tests.kill()
    wait_until(lambda: not rank.exists(), "the end of the rank")


def test_ranks_whose_answers_are_unread_are_not_used_again() -> None:
    """The next test would get the answers of one that its time limit has ended."""
    pool = RankPool(count=1)
    try:
        with mock.patch.object(Ranks, "_receive", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            pool.run(lambda: "first", size=1)
        assert pool.run(lambda: "second", size=1) == ["second"]
    finally:
        pool.close()


def test_ranks_train_on_the_cpu_beside_a_gpu_without_a_warning(ranks: RankPool) -> None:
    def train() -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), model.named_parameters())
        with mock.patch.object(torch.cuda, "device_count", return_value=1) as count:
            for _ in range(25):  # after 20 a user is warned
                model(torch.ones(1)).sum().backward()
                optimizer.step()
            assert count.called == (hvd.rank() == 0)

    ranks.run(train, size=2)
