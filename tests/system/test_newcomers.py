"""A worker that is started beside others who train, and ends before it has joined them, holds no other up."""

from tests.system.launcher import Launcher

SCRIPT = """
import os, pathlib, signal, sys
incarnation = os.environ["HVD_INCARNATION"]
if incarnation == "2":
    sys.exit()
import torch
import worker_runtime.torch as hvd
hvd.init()
state = hvd.elastic.TorchState(step=0, was_alone=False)
@hvd.elastic.run
def train(state):
    while not (state.was_alone and pathlib.Path("go").exists()):
        if state.step == 3 and incarnation == "1" and os.environ["HVD_SLOT"].endswith(":1"):
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(1), name="x")
        state.step += 1
        state.was_alone |= hvd.size() == 1
        state.commit()
train(state)
print("ends with", hvd.size(), flush=True)
"""


def test_a_newcomer_that_exits_with_0_before_it_joins_is_reported_and_not_started_again(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT)
    running = hvdrun.start("-np", "2", "--min-np", "1", "python", "train.py")
    name = r"the worker localhost:1#2, which was started while the others trained,"
    running.stderr.wait_for(rf"^hvdrun: {name} exited before it had joined them: it is not started again\.$", 60)
    running.stderr.wait_for(r"^hvdrun: the job continues with 1 worker\.$", 60)
    hvdrun.write("go", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "[0] ends with 1\n"
    assert finished.stderr.count("a new worker is started in slot") == 1
