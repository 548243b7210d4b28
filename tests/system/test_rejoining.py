"""Workers that leave the job and join it again; gRPC's own handlers for fork() now and then hung in between."""

from tests.system.launcher import Launcher

ROUNDS = 8

SCRIPT = f"""\
import os, sys
import torch
import worker_runtime.torch as hvd

total = 0.0
for _ in range({ROUNDS}):
    hvd.init()
    total += hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    hvd.shutdown()
print("sum", total)
"""


def test_workers_may_leave_and_join_again_and_fork_in_between(hvdrun: Launcher) -> None:
    script = hvdrun.write("again.py", SCRIPT)
    ended = hvdrun("-np", "2", "--no-prefix", "--start-timeout", "20", "python", script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"sum {2.0 * ROUNDS}"] * 2
