"""What README and docs show of a training script runs, and the messages that they show are those that come."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.system.launcher import Launcher

ROOT = Path(__file__).parents[2]
PAGES = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
TEXT = "\n".join(PAGES)
ALL_BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
BLOCKS = [block for block in ALL_BLOCKS if "import hvdrun" not in block]
FUNCTIONS = [block for block in ALL_BLOCKS if "import hvdrun" in block]
MESSAGES = re.findall(r"^```\n((?:Mismatched|One or more).*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

# Runs one block after the other, each with the names that a script has by then, and compares the replicas.
RUNS_BLOCKS = """
import json
import torch
import worker_runtime.torch as hvd

hvd.init()
for index, block in enumerate(json.load(open("blocks.json"))):
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    names = {
        "hvd": hvd,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 2)),
        "scaler": torch.amp.GradScaler("cpu"),
        "loss_of": torch.nn.functional.mse_loss,
        "batches": [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(2 + hvd.rank() * ("join" in block))],
        "train": lambda x, y: hvd.allreduce(x.mean(), name="train"),
        "loss": torch.rand(()),
        "features": torch.rand(2 * hvd.size(), 3),
        "weights": torch.rand(3),
        "config": {"rank": hvd.rank()},
    }
    exec(block, names)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.equal(hvd.allreduce(flat, op=hvd.Min), flat), f"the replicas differ after block {index}"
    if hvd.rank() == 0:
        print("ran", index)
"""
MISMATCHES = """
import torch
import worker_runtime.torch as hvd

hvd.init()
for case in (
    lambda: hvd.allreduce(torch.ones(3 + hvd.rank()), name="loss"),
    lambda: hvd.allreduce(torch.ones(3), name="ab"[hvd.rank()]),
):
    try:
        case()
    except hvd.HorovodInternalError as error:
        print(error)
"""
STALLS = """
import torch
import worker_runtime.torch as hvd

hvd.init()
if hvd.rank() == 0:
    hvd.allreduce(torch.ones(3), name="loss")
else:
    input()
    hvd.allreduce(torch.ones(3), name="loss")
"""


def test_the_example_of_functions_runs(hvdrun: Launcher) -> None:
    (block,) = FUNCTIONS
    run = subprocess.run(
        [sys.executable, "-c", block],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert sorted(lines[:2]) == [f"[{rank}] rank {rank} trains 2 epochs" for rank in range(2)]
    assert lines[2] == "[2.0, 2.0]"
    assert len(lines) == 7


def test_every_block_of_python_runs(hvdrun: Launcher) -> None:
    assert len(BLOCKS) >= 7
    hvdrun.write("blocks.json", json.dumps([textwrap.dedent(block) for block in BLOCKS]))
    hvdrun.write("train.py", RUNS_BLOCKS)
    finished = hvdrun("-np", "2", "python", "train.py")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.splitlines() == [f"[0] ran {index}" for index in range(len(BLOCKS))]


def test_the_messages_about_mismatches_are_those_that_come(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", MISMATCHES)
    finished = hvdrun("-np", "2", "python", "train.py")
    assert (finished.returncode, finished.stderr) == (0, "")
    shown = [message.strip() for message in MESSAGES if message.startswith("Mismatched")]
    for rank in range(2):
        mark = f"[{rank}] "
        own = [line.removeprefix(mark) for line in finished.stdout.splitlines() if line.startswith(mark)]
        assert own == shown


@pytest.mark.nightly
def test_the_warning_about_a_stall_is_the_one_that_comes(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", STALLS)
    seconds = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    (shown,) = [message.strip() for message in MESSAGES if message.startswith("One or more")]
    expected = "\n".join(f"[0] {line}" for line in shown.replace("60 seconds", "1 seconds").splitlines())
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb") as answers:
        running = hvdrun.start("-np", "2", "--stdin", "1", "python", "train.py", environment=seconds, stdin=stdin)
        running.stderr.wait_for(re.escape(expected), limit_seconds=30)
        answers.write(b"go on\n")
    assert running.wait().returncode == 0
