"""Many at once on one machine: jobs, workers, bytes; and a reader who pauses."""

import signal
import time

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent, wait_until
from tests.system.scripts import JOIN

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
WORKERS = 16
MEGABYTES = 200
CROWD = 200
CHATTERS = f"""
import os, sys
rank = int(os.environ["HOROVOD_RANK"])
line = b"%d " % rank + b"x" * 95
end = {MEGABYTES} * 1_000_000 // {WORKERS} // 100
sys.stdout.buffer.write(b"".join(b"%06d %s\\n" % (number, line) for number in range(end)))
"""
FLOOD = "import sys\nwhile True: sys.stdout.write('y' * 1000 + '\\n')"


@pytest.mark.parametrize(
    ("count", "script"),
    [
        (4, JOINS),
        pytest.param(20, JOINS, marks=pytest.mark.nightly),
        pytest.param(5, TRAINS, marks=pytest.mark.nightly),
    ],
    ids=["4", "20", "5 that train"],
)
def test_jobs_at_once_do_not_collide(hvdrun: Launcher, count: int, script: str) -> None:
    hvdrun.write("train.py", script)
    jobs = [hvdrun.start("-np", "2", "python", "train.py", str(number)) for number in range(count)]
    for number, job in enumerate(jobs):
        finished = job.wait(200)
        assert (finished.returncode, finished.stderr) == (0, "")
        assert sorted(finished.stdout.splitlines()) == [f"[{rank}] sum {2 * number}" for rank in range(2)]


def count_sleepers(hvdrun: Launcher) -> int:
    """How many workers of a crowd live."""
    return sum(process.command == "sleep 1234" for process in hvdrun.processes("sleep 1234"))


def start_crowd(hvdrun: Launcher) -> Running:
    job = hvdrun.start("-np", str(CROWD), "--grace", "600s", "sleep", "1234")
    wait_until(lambda: count_sleepers(hvdrun) == CROWD)
    return job


@pytest.mark.nightly
def test_two_hundred_workers_that_heed_a_signal_end_before_the_grace(hvdrun: Launcher) -> None:
    """Each end takes a look at all processes of the machine."""
    job = start_crowd(hvdrun)
    job.send(signal.SIGTERM)
    assert job.wait().returncode == 143
    assert count_sleepers(hvdrun) == 0


@pytest.mark.nightly
def test_two_hundred_workers_do_not_outlive_a_killed_hvdrun(hvdrun: Launcher) -> None:
    job = start_crowd(hvdrun)
    job.send(signal.SIGKILL)
    job.wait()


@pytest.mark.nightly
def test_two_hundred_short_workers_end_well(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", str(CROWD), "true")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


@pytest.mark.nightly
def test_sixteen_workers_that_print_200_megabytes_lose_nothing(hvdrun: Launcher) -> None:
    """Read by a program, since what is checked is each worker's stream: every line, whole and in order."""
    hvdrun.write("chatter.py", CHATTERS)
    job, stdout = hvdrun.open("-np", str(WORKERS), "python", "chatter.py")
    numbers = [0] * WORKERS
    for line in stdout:
        mark, number, rank, text = line.split(b" ")
        worker = int(rank)
        assert (mark, int(number), len(text)) == (b"[%d]" % worker, numbers[worker], 96), line[:50]
        numbers[worker] += 1
    assert job.wait(60) == 0
    assert numbers == [MEGABYTES * 1_000_000 // WORKERS // 100] * WORKERS


@pytest.mark.nightly
def test_a_reader_who_pauses_costs_no_lease_and_blocks_no_exit(hvdrun: Launcher) -> None:
    hvdrun.write("flood.py", FLOOD)
    job, stdout = hvdrun.open("-np", "2", "--lease", "2s", "--grace", "0.5s", "python", "flood.py")
    assert stdout.read(1000)
    time.sleep(6)  # three leases; that nothing happens has no event
    assert job.poll() is None
    assert find_agent(hvdrun) is not None
    job.send_signal(signal.SIGINT)
    wait_until(lambda: hvdrun.processes("flood.py") == hvdrun.processes("-m hvdrun --no-prefork -np"))
    assert job.poll() is None  # it waits for its reader
    job.send_signal(signal.SIGINT)
    assert job.wait(60) == 130
