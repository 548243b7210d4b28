"""Workers that are started beside others who train: one that never joins them holds nobody up, and is not kept."""

import pytest

from tests.system.launcher import Launcher

SCRIPT = """
import os, pathlib, signal, sys, time
incarnation = os.environ["HVD_INCARNATION"]
if incarnation == "2":
    {fate}
import torch
import worker_runtime.torch as hvd
hvd.init()
state = hvd.elastic.TorchState(step=0, was_alone=False)
@hvd.elastic.run
def train(state):
    while not (state.was_alone and (hvd.size() == 2 or pathlib.Path("go").exists())):
        if state.step == 3 and incarnation == "1" and os.environ["HVD_SLOT"].endswith(":1"):
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(1), name="x")
        state.step += 1
        state.was_alone |= hvd.size() == 1
        state.commit()
train(state)
print("ends with", hvd.size(), flush=True)
"""
OPTIONS = ("-np", "2", "--min-np", "1", "--start-timeout", "20s", "python", "train.py")


@pytest.mark.nightly
def test_a_newcomer_that_hangs_before_it_joins_is_ended_and_another_started(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT.format(fate="time.sleep(600)"))
    finished = hvdrun(*OPTIONS)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("ends with 2\n") == 2
    again = "hvdrun: the worker in the slot localhost:1 is started again."
    late = "rank 1 (localhost:1#2) was started beside the others, and did not join them within 20 s (--start-timeout)"
    assert finished.stderr.splitlines() == [
        "hvdrun: rank 1 (localhost:1) was lost: killed by SIGKILL (signal 9).",
        again,
        "hvdrun: the job goes on with 1 worker.",
        f"hvdrun: {late}.",
        again,
        "hvdrun: the job goes on with 2 workers.",
    ]


def test_a_newcomer_that_ends_well_before_it_joins_is_reported_and_not_started_again(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT.format(fate="sys.exit()"))
    running = hvdrun.start(*OPTIONS)
    name = r"the worker localhost:1#2, which was started beside the others,"
    running.stderr.wait_for(rf"^hvdrun: {name} ended well before it had joined them: it is not started again\.$", 60)
    running.stderr.wait_for(r"^hvdrun: the job goes on with 1 worker\.$", 60)
    hvdrun.write("go", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "[0] ends with 1\n"
    assert finished.stderr.count("the worker in the slot") == 1
