"""A worker that is started beside others who train: it may end before it has joined them, or they while it does."""

from tests.system.launcher import Launcher
from tests.waiting import LIMIT_SECONDS

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


# The weight counts the steps. Rank 2 is lost. The first rank 0 is lost when all have the model of the state, and not
# its counter.
SENDING = f"""
import os, pathlib, signal, time
import torch
import worker_runtime.torch as hvd
hvd.init()
place = os.environ["HVD_SLOT"].rpartition(":")[2] + "." + os.environ["HVD_INCARNATION"]
received, is_full = pathlib.Path("received"), False

class Watching:
    def state_dict(self):
        if is_full and place == "1.1":
            received.touch()
        if is_full and place == "0.1":
            deadline = time.monotonic() + {LIMIT_SECONDS}
            while not received.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return {{}}

    def load_state_dict(self, state):
        pass

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
state = hvd.elastic.TorchState(model=model, watching=Watching(), step=0)

@hvd.elastic.run
def train(state):
    global is_full
    print("begins at step", state.step, "with", model.weight.item(), flush=True)
    while state.step < 8:
        state.step += 1
        model.weight.data += 1
        if state.step == 3 and place == "2.1":
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(1), name="x")
        if state.step == 2:
            state.commit()
        while state.step == 5 and hvd.size() < 3:
            is_full = True
            state.check_host_updates()
            time.sleep(0.01)

train(state)
print("ends with", model.weight.item(), flush=True)
"""


def test_a_state_that_was_sent_in_part_is_taken_back_as_a_whole(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SENDING)
    finished = hvdrun("-np", "3", "--min-np", "1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    begins = {f"begins at step {step} with {step}.0" for step in (0, 2, 5)}
    assert {line.partition(" ")[2] for line in finished.stdout.splitlines()} == {*begins, "ends with 8.0"}
