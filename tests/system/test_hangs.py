"""`hvdrun stacks` shows where each rank is, and the job goes on."""

import json
import subprocess
import sys

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

STANDS = f"""{WAIT_FOR}
def stand():
    print("stands", flush=True)
    wait_for("end")
stand()
"""


def show_stacks(hvdrun: Launcher, running: Running, *words: str) -> tuple[int, str]:
    """What `hvdrun stacks` prints about this job, which was started with -v; and its exit code."""
    job = running.stderr.wait_for("^hvdrun: job ([0-9a-f]+)$", 60)[1]
    done = subprocess.run(
        [sys.executable, "-m", "hvdrun", "stacks", job, *words],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])
def test_the_page_of_stacks_shows_the_function_of_each_rank(hvdrun: Launcher, *, forks: bool) -> None:
    hvdrun.write("train.py", STANDS)
    running = hvdrun.start("-v", "-np", "2", "python", "train.py", forks=forks)
    for rank in range(2):
        running.stdout.wait_for(rf"\[{rank}\] stands", 60)
    code, page = show_stacks(hvdrun, running, "--json")
    places = json.loads(page)["places"]
    assert (code, [each["rank"] for each in places]) == (0, [0, 1])
    for each in places:
        assert [frame["function"] for frame in each["stack"]["frames"]][-2:] == ["stand", "<module>"]
    code, page = show_stacks(hvdrun, running)
    assert "ranks 0-1 (localhost):\n" in page
    hvdrun.write("end", "")
    assert running.wait().returncode == 0


def test_a_program_that_is_not_python_lives_on_and_is_named(hvdrun: Launcher) -> None:
    running = hvdrun.start("-v", "-np", "1", "sh", "-c", "echo stands; until [ -e end ]; do sleep 0.05; done")
    running.stdout.wait_for("stands", 60)
    code, page = show_stacks(hvdrun, running)
    assert code == 3
    assert "rank 0 (localhost): its program, " in page
    assert ", is not Python" in page
    hvdrun.write("end", "")
    assert running.wait().returncode == 0


HOLDS_UP = """
import queue, sys, time
import torch
import worker_runtime.torch as hvd

def load(batches):
    return batches.get()

hvd.init()
last = hvd.size() - 1
hvd.allreduce(torch.ones(1), name="loss")
if hvd.rank() == last and hvd.size() == int(sys.argv[1]):
    load(queue.Queue())
hvd.allreduce(torch.ones(1), name="loss")
print("ends", flush=True)
"""
PLACE = r"in train\.py:7 in load: return batches\.get\(\)"
LINE = rf"^hvdrun: rank 2 \(localhost\) is {PLACE}; 2 others have waited for it in allreduce 'loss' for [\d.]+ s$"


def test_the_rank_that_holds_up_the_others_is_named_with_its_place_and_ended_in_time(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", HOLDS_UP)
    running = hvdrun.start("-np", "3", "--watch-after", "1", "--hang-timeout", "5", "python", "train.py", "3")
    running.stderr.wait_for(LINE, 60)
    finished = running.wait()
    assert finished.returncode == 137
    lost = rf"rank 2 \(localhost:2\) was lost: it held up the others for 5 s \(--hang-timeout\); it was {PLACE}"
    running.stderr.wait_for(lost, 0)


@pytest.mark.nightly
def test_an_elastic_job_continues_without_the_rank_that_hangs(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", HOLDS_UP)
    words = ("-np", "3", "--min-np", "2", "--watch-after", "0", "--hang-timeout", "1", "python", "train.py", "3")
    finished = hvdrun(*words)
    assert (finished.returncode, sorted(finished.stdout.splitlines())) == (0, ["[0] ends", "[1] ends"])
    assert "it held up the others for 1 s (--hang-timeout)" in finished.stderr
    assert "2 others have waited" not in finished.stderr
