"""The sequencer of a job, which has one while workers are joined; `test_kill.py` has its ends."""

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, find_sequencers, kill
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

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
def test_a_job_has_a_sequencer_at_rank_0_s_address_and_its_death_is_reported(hvdrun: Launcher, way: str) -> None:
    forks, command = WAYS[way]
    hvdrun.write("train.py", JOINS)
    running = hvdrun.start("-np", "2", *command, forks=forks)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] joined", 60)
    address = running.stdout.wait_for(r"^\[0\] at (\S+)$", 60)[1]
    (sequencer,) = hvdrun.processes("worker_runtime.coordination.sequencer")
    assert (sequencer.parent, sequencer.listens) == (find_agent(hvdrun), (address,))
    kill(sequencer.pid)
    sentence = "the sequencer on localhost, which orders the workers' collectives, is gone: it ended with SIGKILL"
    running.stderr.wait_for(rf"^hvdrun: {sentence} \(signal 9\)$", 60)
    hvdrun.write("go", "")
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, f"hvdrun: {sentence} (signal 9)\n")


@pytest.mark.parametrize(("module", "count"), rest_nightly([("worker_runtime.torch", 1), ("torch", 0)]))
def test_a_sequencer_starts_with_forked_workers_of_a_script_of_hvd(hvdrun: Launcher, module: str, count: int) -> None:
    hvdrun.write("train.py", f"{WAIT_FOR}\nimport {module}\nprint('imported', flush=True)\nwait_for('go')\n")
    running = hvdrun.start("-np", "2", "python", "train.py", forks=True)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] imported$", 60)
    wait_until(lambda: len(find_sequencers(hvdrun)) == count, f"{count} sequencers")
    hvdrun.write("go", "")
    assert running.wait().returncode == 0


# Whenever rank 1 is about to connect, it says so, and waits until it may.
TRAINS = f"""{WAIT_FOR}
import itertools
import torch
import worker_runtime.torch as hvd
from worker_runtime.groups.gloo import Gloo

def make_late(self, *arguments):
    number = next(numbers)
    print("forms", number, flush=True)
    wait_for(f"go-{{number}}")
    return make(self, *arguments)

make, numbers = Gloo.make, itertools.count(1)
if os.environ["HVD_SLOT"].endswith(":1"):
    Gloo.make = make_late
hvd.init()
state = hvd.elastic.TorchState(step=0)

@hvd.elastic.run
def train(state):
    print("trains", flush=True)
    while not hvd.broadcast_object(pathlib.Path("stop").exists()):
        hvd.allreduce(torch.ones(1), name="x")
        state.step += 1
        state.commit()

train(state)
print("trained", hvd.size(), flush=True)
"""


@pytest.mark.nightly
def test_the_sequencer_s_death_while_a_generation_forms_has_the_members_form_another(hvdrun: Launcher) -> None:
    """Of the first generation, and of one that a recovery forms."""
    hvdrun.write("train.py", TRAINS)
    running = hvdrun.start("-np", "2", "--min-np", "2", "python", "train.py")

    def await_forming(number: int) -> None:
        running.stdout.wait_for(rf"^\[\d\] forms {number}$", 60)

    def kill_one() -> None:
        (sequencer,) = find_sequencers(hvdrun)
        kill(sequencer)

    await_forming(1)
    kill_one()
    hvdrun.write("go-1", "")
    await_forming(2)
    hvdrun.write("go-2", "")
    running.stdout.wait_for(r"^\[0\] trains$", 60)
    kill_one()
    await_forming(3)
    kill_one()
    hvdrun.write("go-3", "")
    hvdrun.write("go-4", "")
    hvdrun.write("stop", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
