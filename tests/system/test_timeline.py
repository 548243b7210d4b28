"""The timeline of a job: through hvdrun's option, and after the loss of rank 0."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.system.launcher import Launcher
from tests.waiting import wait_until

TRAIN = """
import os, pathlib, time
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    while not hvd.broadcast_object(pathlib.Path("enough").exists(), name="enough"):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        print(hvd.rank(), os.getpid(), "of", hvd.size(), flush=True)
        time.sleep(0.05)

train(state)
"""
LATE = """
import sys, time
import torch
import horovod.torch as hvd

hvd.init()
for _ in range(20):
    if hvd.rank() == 1:
        time.sleep(0.01)
    hvd.allreduce(torch.ones(1), name="loss")
"""


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a part."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_a_late_rank_is_named(hvdrun: Launcher) -> None:
    hvdrun.write("late.py", LATE)
    finished = hvdrun("-np", "2", "--timeline", "t.json", "python", "late.py")
    assert finished.returncode == 0, finished.stderr
    shown = hvdrun("timeline", "--json", "t.json", forks=True)
    found = json.loads(shown.stdout)
    assert found["stragglers"][0]["rank"] == 1
    assert found["stragglers"][0]["last"] >= 15
    assert found["collectives"][0]["count"] == 20


@pytest.mark.nightly
def test_the_next_rank_0_continues_in_another_part(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAIN)
    sizes = ("-np", "3", "--min-np", "2", "--max-np", "3")
    running = hvdrun.start(*sizes, "--timeline", "t.json", "python", "train.py")
    first = int(running.stdout.wait_for(r"0 (\d+) of 3$", 60)[1])
    wait_until(lambda: "NEGOTIATE_ALLREDUCE" in (hvdrun.directory / "t.json").read_text())
    os.kill(first, signal.SIGKILL)
    running.stdout.wait_for(rf"0 (?!{first})\d+ of [23]$", 60)
    running.stdout.wait_for("0 .* of 3$", 60)
    hvdrun.write("enough", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    for name in ("t.json", "t.json.1"):
        texts = [event.get("name", "") for event in read(hvdrun.directory / name)]
        assert any(text.startswith("generation ") for text in texts)
        assert "NEGOTIATE_ALLREDUCE" in texts
    assert sum(text.startswith("interrupted: rank 0 ") for text in texts) == 1  # which could not note it
    page = hvdrun("timeline", "t.json", forks=True).stdout
    assert "t.json and 1 more" in page


@pytest.mark.nightly
def test_a_rank_0_that_cannot_write_the_timeline_trains_without_it(hvdrun: Launcher) -> None:
    """The folder may be on the host of the first rank 0 alone."""
    begins = 'hvd.start_timeline("t.json" if hvd.rank() == 0 else "missing/t.json")\n'
    hvdrun.write("train.py", TRAIN.replace("hvd.init()\n", f"hvd.init()\n{begins}"))
    running = hvdrun.start("-np", "3", "--min-np", "2", "--max-np", "3", "python", "train.py")
    first = int(running.stdout.wait_for(r"0 (\d+) of 3$", 60)[1])
    os.kill(first, signal.SIGKILL)
    running.stdout.wait_for(rf"0 (?!{first})\d+ of [23]$", 60)
    running.stdout.wait_for("0 .* of 3$", 60)
    hvdrun.write("enough", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("missing/t.json cannot be written: No such file or directory") == 1
