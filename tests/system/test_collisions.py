"""Several jobs on one machine at once: no port, folder, socket or group is shared."""

from tests.system.launcher import Launcher

JOBS = 5
TRAINS = """
import sys
import torch
import worker_runtime.torch as hvd

hvd.init()
number = int(sys.argv[1])
for step in range(20):
    total = hvd.allreduce(torch.full((1000,), float(number + hvd.rank())), op=hvd.Sum, name=f"step {step}")
    assert torch.equal(total, torch.full((1000,), 2.0 * number + 1.0)), total
print("sum", int(total[0]))
hvd.shutdown()
"""


def test_five_jobs_at_once_do_not_collide(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    jobs = [hvdrun.start("-np", "2", "python", "train.py", str(number)) for number in range(JOBS)]
    for number, job in enumerate(jobs):
        finished = job.wait(110)
        assert (finished.returncode, finished.stderr) == (0, "")
        assert sorted(finished.stdout.splitlines()) == [f"[{rank}] sum {2 * number + 1}" for rank in range(2)]
