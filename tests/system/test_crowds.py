"""Many together on one machine: jobs, workers, bytes; and a reader that pauses."""

import signal

import pytest

from tests.system.launcher import Launcher
from tests.system.scripts import JOIN
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

JOINS = f"""{JOIN}
print("sum", join().assignment.size * int(sys.argv[1]))
"""
TRAINS = """
import sys
import torch
import worker_runtime.torch as hvd

hvd.init()
for step in range(20):
    total = hvd.allreduce(torch.full((1000,), float(sys.argv[1])), op=hvd.Sum, name=f"step {step}")
    assert torch.equal(total, torch.full((1000,), 2.0 * int(sys.argv[1]))), total
print("sum", int(total[0]))
"""
CROWD = 200


@pytest.mark.parametrize(
    ("count", "script"),
    rest_nightly([(3, JOINS), (20, JOINS), (5, TRAINS)]),
    ids=["3", "20", "5 that train"],
)
def test_simultaneous_jobs_do_not_collide(hvdrun: Launcher, count: int, script: str) -> None:
    hvdrun.write("train.py", script)
    jobs = [hvdrun.start("-np", "2", "python", "train.py", str(number)) for number in range(count)]
    for number, job in enumerate(jobs):
        finished = job.wait(200)
        assert (finished.returncode, finished.stderr) == (0, "")
        assert sorted(finished.stdout.splitlines()) == [f"[{rank}] sum {2 * number}" for rank in range(2)]


def count_sleepers(hvdrun: Launcher) -> int:
    """How many workers of a crowd live."""
    return sum(process.command == "sleep 1234" for process in hvdrun.processes("sleep 1234"))


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_two_hundred_workers_end_with_hvdrun(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    """Each end takes a look at all processes of the machine; none waits for the grace. Few files are allowed."""
    few_files = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh"]
    job = hvdrun.start("-np", str(CROWD), "--grace", "600s", "sleep", "1234", before=few_files)
    wait_until(lambda: count_sleepers(hvdrun) == CROWD)
    job.send(number)
    assert job.wait().returncode == code
    wait_until(lambda: count_sleepers(hvdrun) == 0)
