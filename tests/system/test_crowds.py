"""Many at once on one machine: jobs, workers, bytes; and a reader who pauses."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent

JOBS = 20
JOINS = """
import os
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
print(client.join(0).assignment.rank)
client.close()
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


def test_twenty_jobs_at_once_do_not_collide(hvdrun: Launcher) -> None:
    hvdrun.write("join.py", JOINS)
    jobs = [hvdrun.start("-np", "2", "python", "join.py") for _ in range(JOBS)]
    for job in jobs:
        finished = job.wait(100)
        assert (finished.returncode, finished.stderr) == (0, "")
        assert sorted(finished.stdout.splitlines()) == ["[0] 0", "[1] 1"]


def sleepers(hvdrun: Launcher) -> int:
    """How many workers of a crowd live."""
    return sum(process.command == "sleep 1234" for process in hvdrun.processes("sleep 1234"))


def start_crowd(hvdrun: Launcher) -> Running:
    job = hvdrun.start("-np", str(CROWD), "--grace", "60s", "sleep", "1234")
    deadline = time.monotonic() + 40
    while sleepers(hvdrun) < CROWD:
        assert time.monotonic() < deadline, "the workers were not started"
        time.sleep(0.1)
    return job


def test_two_hundred_workers_that_heed_a_signal_end_long_before_the_grace(hvdrun: Launcher) -> None:
    """Each end takes a look at all processes of the machine; they once took 15 seconds."""
    job = start_crowd(hvdrun)
    job.send(signal.SIGTERM)
    assert job.wait(30).returncode == 143
    assert sleepers(hvdrun) == 0


def test_two_hundred_workers_do_not_outlive_a_killed_hvdrun(hvdrun: Launcher) -> None:
    job = start_crowd(hvdrun)
    job.send(signal.SIGKILL)
    job.wait(10)
    left = hvdrun.watch.settle(5)
    assert not left, str(left)


def test_two_hundred_short_workers_are_over_soon(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", str(CROWD), "true", limit_seconds=30)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


def test_sixteen_workers_that_print_200_megabytes_lose_nothing(hvdrun: Launcher) -> None:
    """Read by a program, since what is checked is each worker's stream: every line, whole and in order."""
    hvdrun.write("chatter.py", CHATTERS)
    job = subprocess.Popen(
        [sys.executable, "-m", "hvdrun", "-np", str(WORKERS), "python", "chatter.py"],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    numbers = [0] * WORKERS
    with job.stdout as lines:
        for line in lines:
            mark, number, rank, text = line.split(b" ")
            worker = int(rank)
            assert (mark, int(number), len(text)) == (b"[%d]" % worker, numbers[worker], 96), line[:50]
            numbers[worker] += 1
    assert job.wait(60) == 0
    assert numbers == [MEGABYTES * 1_000_000 // WORKERS // 100] * WORKERS


def test_one_stream_of_bytes_arrives_unchanged(hvdrun: Launcher) -> None:
    hvdrun.write("noise.py", "import os, random, sys\nsys.stdout.buffer.write(random.Random(3).randbytes(3_000_000))")
    finished = hvdrun("-np", "1", "--no-prefix", "python", "noise.py")
    expected = subprocess.run(
        [sys.executable, hvdrun.directory / "noise.py"], capture_output=True, check=True
    ).stdout.rstrip(b"\n")
    found = os.fsencode(finished.stdout).rstrip(b"\n")
    assert hashlib.sha256(found).hexdigest() == hashlib.sha256(expected).hexdigest()


@pytest.mark.timeout(60)
def test_a_reader_who_pauses_costs_no_lease_and_blocks_no_exit(hvdrun: Launcher) -> None:
    hvdrun.write("flood.py", FLOOD)
    job = subprocess.Popen(
        [sys.executable, "-m", "hvdrun", "-np", "2", "--lease", "1s", "--grace", "0.5s", "python", "flood.py"],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert job.stdout is not None
    assert job.stderr is not None
    try:
        assert job.stdout.read(1000)
        time.sleep(4)  # four leases; that nothing happens has no event
        assert job.poll() is None
        assert find_agent(hvdrun) is not None
        job.send_signal(signal.SIGINT)
        time.sleep(1.5)  # the workers end, and hvdrun waits for its reader: again nothing to wait for
        assert hvdrun.processes("flood.py") == tuple(hvdrun.processes("-m hvdrun -np"))
        job.send_signal(signal.SIGINT)
        assert job.wait(5) == 130
    finally:
        job.kill()
        job.wait()
        job.stdout.close()
        job.stderr.close()
