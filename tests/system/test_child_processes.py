"""Processes that workers start by multiprocessing, as a DataLoader does: killed, they leave nothing behind."""

import pytest

from tests.system.launcher import Launcher
from tests.system.tables import rest_nightly

# In their second epoch both workers have handed batches over, and so have their children: the first worker of slot 1 is
# killed then, with its children, and the one that takes its place ends well.
SCRIPT = """\
import os
import signal
import sys
import warnings

import torch
import torch.utils.data

import worker_runtime.torch as hvd

warnings.simplefilter("error")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor([float(index)])


@hvd.elastic.run
def train(state, batches):
    while state.epoch < 3 or hvd.size() < 2:
        for batch in batches:
            hvd.allreduce(batch.sum(), name="sum")
        if state.epoch == 1 and os.environ["HVD_SLOT"] == "localhost:1" and os.environ["HVD_INCARNATION"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        state.epoch += 1
        state.commit()


def main():
    hvd.init()
    batches = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context=sys.argv[1]
    )
    train(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=0), batches)
    print("well")


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("method", "forks"), rest_nightly([("fork", True), ("forkserver", False), ("spawn", True)]))
def test_children_of_a_killed_worker_do_not_outlive_it(hvdrun: Launcher, method: str, *, forks: bool) -> None:
    hvdrun.write("train.py", SCRIPT)
    job = ("-np", "2", "--min-np", "1", "--no-prefix", "python", "train.py", method)
    finished = hvdrun(*job, forks=forks)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["well"] * 2
    # Python's own tracker of semaphores, which outlives the killed, reports those that it removes.
    said = [
        line for line in finished.stderr.splitlines() if "resource_tracker" not in line and "warnings.w" not in line
    ]
    loss, *rest = said
    assert loss == "hvdrun: rank 1 (localhost:1) was lost: killed by SIGKILL (signal 9)."
    # A new worker is started once rank 0 has reported that it can begin again, which may be after its recovery.
    assert rest.count("hvdrun: a new worker is started in slot localhost:1.") == 1, finished.stderr
    continued = [line for line in rest if line.startswith("hvdrun: the job continues with ")]
    assert len(continued) == len(rest) - 1, finished.stderr
