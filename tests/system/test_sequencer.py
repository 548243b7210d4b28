"""The sequencer of a job, which has one while workers are joined; `test_kill.py` has its ends."""

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, kill
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

JOINS = f"""{WAIT_FOR}
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
membership = client.join(0)
if membership.assignment.rank == 0:
    print("at", client.await_sequencer(membership.generation), flush=True)
client.close()
print("joined", flush=True)
wait_for("go")
"""
WAYS = {
    "forked": (True, ("python", "train.py")),
    "executed": (False, ("python", "train.py")),
    "unknown": (True, ("sh", "-c", "python train.py; true")),
}


@pytest.mark.parametrize("way", rest_nightly(WAYS))
def test_a_job_has_one_that_listens_where_rank_0_is_told_and_its_death_is_reported(hvdrun: Launcher, way: str) -> None:
    forks, command = WAYS[way]
    hvdrun.write("train.py", JOINS)
    running = hvdrun.start("-np", "2", *command, forks=forks)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] joined", 60)
    address = running.stdout.wait_for(r"^\[0\] at (\S+)$", 60)[1]
    (sequencer,) = hvdrun.processes("worker_runtime.coordination.sequencer")
    assert (sequencer.parent, sequencer.listens) == (find_agent(hvdrun), (address,))
    kill(sequencer.pid)
    sentence = "the sequencer on localhost, which orders the workers' collectives, is gone: it ended with signal 9"
    running.stderr.wait_for(rf"^hvdrun: {sentence}$", 60)
    hvdrun.write("go", "")
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, f"hvdrun: {sentence}\n")
