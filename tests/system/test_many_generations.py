"""A job whose group is formed anew many times: its workers stay as they are.

The sequencer is killed again and again, which makes the same ranks form the next generation in their own processes.
Each worker writes down what it has when the first steps of a generation are made: threads, descriptors, memory. `make
soak` makes 200 generations (HVDRUN_SOAK_GENERATIONS).
"""

import json
import os
from functools import partial
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_sequencers, kill
from tests.waiting import wait_until

GENERATIONS = int(os.environ.get("HVDRUN_SOAK_GENERATIONS", "12"))
SETTLED = 5  # after so many nothing may come to stay
BYTES_EACH = 30_000  # that a generation may cost for ever: 8 to 12 KB in the mean of 200
BYTES_SETTLING = 1_500_000  # and all of them for once: the first twelve cost 60 to 120 KB each
MORE_STEPS = 1000  # after which the workers end: when they come there, each has received the loss
LIMIT_SECONDS = 60.0

TRAIN = """
import json, os, sys
import torch
import worker_runtime.torch as hvd
from worker_runtime.membership.runtime import RUNTIME

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.Tanh(), torch.nn.Linear(512, 4))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
hvd.add_process_set([1])  # which moves from one generation to the next
notes = open(f"{hvd.rank()}.notes", "a", buffering=1)
noted, since, step = 0, 0, 0
while True:
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    hvd.allreduce(loss, name="loss")  # when the sequencer dies, some may have the answer, and others not
    step += 1
    generation = RUNTIME.engine.generation
    since = since + 1 if generation == noted else 0
    noted = generation
    if since == 3:
        pages = int(open("/proc/self/statm").read().split()[1])
        threads, descriptors = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")) - 1
        notes.write(json.dumps([step, generation, threads, descriptors, pages * os.sysconf("SC_PAGE_SIZE")]) + "\\n")
    if os.path.exists("stop") and step >= int(open("stop").read()):
        break
print("steps", step, flush=True)
"""


def read_notes(path: Path) -> list[tuple[int, int, int, int, int]]:
    """Step, generation, threads, descriptors, bytes of memory."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.nightly
@pytest.mark.timeout(240 + GENERATIONS)
def test_a_group_that_is_formed_anew_leaves_nothing(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAIN)
    running = hvdrun.start("-np", "2", "--min-np", "1", "python", "train.py")
    paths = [hvdrun.directory / f"{rank}.notes" for rank in range(2)]

    def is_decided(count: int) -> bool:
        return not running.is_running or all(len(read_notes(path)) >= count for path in paths)

    for count in range(1, GENERATIONS + 1):
        wait_until(partial(is_decided, count), limit_seconds=LIMIT_SECONDS)
        assert running.is_running, running.wait().stderr
        if count < GENERATIONS:
            (sequencer,) = find_sequencers(hvdrun)
            kill(sequencer)
    last = max(note[0] for path in paths for note in read_notes(path)) + MORE_STEPS
    (hvdrun.directory / "stop.new").write_text(str(last))
    (hvdrun.directory / "stop.new").rename(hvdrun.directory / "stop")
    finished = running.wait(LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    for path in paths:
        notes = read_notes(path)
        assert len({note[1] for note in notes}) == GENERATIONS
        _, _, threads, descriptors, memory = notes[SETTLED]
        assert all(note[2] <= threads and note[3] <= descriptors for note in notes[SETTLED:]), notes
        assert notes[-1][4] - memory <= BYTES_SETTLING + BYTES_EACH * (GENERATIONS - SETTLED), notes
