"""Nothing but a worker opens a GPU: not the processes that start it, and it not before its program does.

A process that has CUDA open could not fork workers that use it, and would hold some hundred MB of each card.
"""

from pathlib import Path

import pytest
import torch

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, find_sequencers, find_watchdog
from tests.waiting import wait_until

# 25 steps on the CPU: after the first 20 a worker looks whether a GPU is idle.
TRAIN = """
import os, time
import torch

print("at start", torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), flush=True)
import worker_runtime.torch as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(25):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
print("trained", torch.cuda.is_initialized(), flush=True)
if torch.cuda.is_available():
    print("on the card", torch.ones(2, device="cuda").sum().item(), flush=True)
while not os.path.exists("stop"):
    time.sleep(0.05)
"""
FORKSERVER = "-m worker_runtime.startup.forkserver"
PLACES = [
    pytest.param("cpu", id="cpu"),
    pytest.param(
        "gpu",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
        id="gpu",
    ),
]


def has_mapped(pid: int, library: str) -> bool:
    """Whether a process has a library in its memory."""
    return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def list_opened(pid: int) -> list[str]:
    """The files and devices that a process has open."""
    return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]


@pytest.mark.parametrize("place", PLACES)
def test_no_process_but_a_worker_opens_a_card(hvdrun: Launcher, place: str) -> None:
    del place  # the same on both: only what could go wrong differs
    hvdrun.write("train.py", TRAIN)
    running = hvdrun.start("-np", "2", "--min-np", "1", "python", "train.py", forks=True)
    wait_until(lambda: running.stdout.text().count("trained False\n") == 2 or not running.is_running)
    assert running.is_running, running.wait().stderr
    for pid in (running.pid, find_agent(hvdrun), find_watchdog(hvdrun)):
        assert pid is not None
        assert not has_mapped(pid, "libtorch")
    (forkserver,), (sequencer,) = hvdrun.processes(FORKSERVER), find_sequencers(hvdrun)
    for pid in (forkserver.pid, sequencer):
        assert has_mapped(pid, "libtorch")
        assert not [name for name in list_opened(pid) if "nvidia" in name]
    (hvdrun.directory / "stop").touch()
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("at start False False\n") == 2
    assert finished.stdout.count("on the card 2.0\n") == (2 if torch.cuda.is_available() else 0)
