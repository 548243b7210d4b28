"""Agents that come by themselves, with real jobs on this machine."""

import re
import signal

import pytest

from tests.system.launcher import Launcher, Running

PLACE = ("--bind", "127.0.0.1", "--token-file", "job.token")
LINE = r"on each host run: hvdrun (agent --join \S+ --token-file \S+)$"
TELLS = """
import os
print(os.environ["RANK"], os.environ["HOROVOD_HOSTNAME"], os.environ.get("MARK"), flush=True)
"""
TRAINS = """
import pathlib, sys, time
import torch
import worker_runtime.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    seen = 0
    while not hvd.broadcast_object(pathlib.Path("enough").exists(), name="enough"):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if hvd.size() != seen and hvd.rank() == 0:
            seen = hvd.size()
            print("size", seen, flush=True)
        time.sleep(0.05)

train(state)
"""


def start_agent(hvdrun: Launcher, line: str, name: str, slots: int = 1) -> Running:
    """Run the line that hvdrun has printed."""
    words = [*line.split(), "--name", name, "--slots", str(slots)]
    return hvdrun.start(*words, forks=True, environment={"MARK": f"of {name}"})


def test_a_static_job_starts_when_its_agents_have_come(hvdrun: Launcher) -> None:
    hvdrun.write("tell.py", TELLS)
    running = hvdrun.start("-np", "3", "--wait-for-agents", *PLACE[:2], "python", "tell.py")
    line = running.stderr.wait_for(LINE, 60)[1]
    late = start_agent(hvdrun, line, "b", 2)
    running.stderr.wait_for(r"^hvdrun: agents: b \(2 slots\); 2 of 3 slots\.$", 60)
    first = start_agent(hvdrun, line, "a", 2)
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    told = sorted(finished.stdout.splitlines())
    assert told == ["[0@a] 0 a of a", "[1@a] 1 a of a", "[2@b] 2 b of b"]
    assert "hvdrun: agents: a (2 slots), b (2 slots); 4 slots.\n" in finished.stderr
    for agent in (first, late):
        ended = agent.wait()
        assert (ended.returncode, ended.stdout) == (0, "")
        assert ended.stderr.endswith("hvdrun: the job has ended, and has released this agent.\n")
    assert sorted(path.name for path in hvdrun.directory.iterdir()) == ["tell.py"]


def test_an_agent_whose_launcher_is_gone_ends_its_workers_and_may_start_again(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "1", "--wait-for-agents", *PLACE, "sh", "-c", "echo up; exec sleep 600")
    agent = start_agent(hvdrun, running.stderr.wait_for(LINE, 60)[1], "a")
    running.stdout.wait_for(r"up$", 60)
    running.send(signal.SIGKILL)
    running.wait()
    ended = agent.wait()
    assert ended.returncode == 75
    assert ended.stderr.endswith("hvdrun: the launcher has gone: this agent has ended its workers.\n")


@pytest.mark.nightly
def test_an_elastic_job_loses_an_agent_and_takes_it_in_again(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    sizes = ("-np", "2", "--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "1", "1")
    running = hvdrun.start(*sizes, "--wait-for-agents", *PLACE, "python", "train.py")
    line = running.stderr.wait_for(LINE, 60)[1]
    stays, goes = start_agent(hvdrun, line, "a"), start_agent(hvdrun, line, "b")
    running.stdout.wait_for(r"size 2$", 60)
    goes.send(signal.SIGKILL)
    running.stdout.wait_for(r"size 1$", 60)
    again = start_agent(hvdrun, line, "b")
    more = start_agent(hvdrun, line, "c")
    running.stdout.wait_for(r"size 3$", 60)
    hvdrun.write("enough", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert re.search(
        r"^hvdrun: the host b was lost: the connection of its agent ended\.$", finished.stderr, re.MULTILINE
    )
    assert [agent.wait().returncode for agent in (stays, again, more)] == [0, 0, 0]
    assert goes.wait().returncode == -signal.SIGKILL
