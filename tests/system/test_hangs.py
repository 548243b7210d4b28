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
def test_each_rank_says_where_it_is(hvdrun: Launcher, *, forks: bool) -> None:
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
