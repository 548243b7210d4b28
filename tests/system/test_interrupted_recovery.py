"""A signal to hvdrun while an elastic job is not training: it ends as ever, soon, and leaves nothing."""

import signal

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import kill
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

# Rank 1 has a fate of its own; its replacement sleeps for ever.
SCRIPT = """
import os, signal, time
place = os.environ["HVD_SLOT"].rpartition(":")[2] + "." + os.environ["HVD_INCARNATION"]
print(place, os.getpid(), flush=True)
if place in {sleepers}:
    time.sleep(600)
import torch
import worker_runtime.torch as hvd
hvd.init()
state = hvd.elastic.TorchState(step=0)
@hvd.elastic.run
def train(state):
    print(place, "trains", flush=True)
    while True:
        if state.step == 3 and place in {victims}:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        hvd.allreduce(torch.ones(1), name="x")
        state.step += 1
train(state)
"""
ENDINGS = [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)]
is_signalled = pytest.mark.parametrize(("number", "code"), rest_nightly(ENDINGS), ids=["SIGTERM", "SIGINT"])


def start(hvdrun: Launcher, *options: str, sleepers: str = "", victims: str = "") -> Running:
    """Start a job in which these workers, named by slot and incarnation, sleep or are killed."""
    hvdrun.write("train.py", SCRIPT.format(sleepers=repr(sleepers.split()), victims=repr(victims.split())))
    return hvdrun.start(*options, "python", "train.py")


def end(hvdrun: Launcher, running: Running, number: signal.Signals) -> tuple[int, str]:
    """Signal hvdrun: how it has ended, and what it has written."""
    running.send_to_terminal(number)
    finished = running.wait()
    assert not hvdrun.watch.settle()
    return finished.returncode, finished.stderr


@pytest.mark.nightly
@is_signalled
def test_a_signal_ends_a_job_while_it_is_being_formed(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    running = start(hvdrun, "-np", "2", "--min-np", "1", sleepers="1.1")
    for place in ("0.1", "1.1"):
        running.stdout.wait_for(rf"\] {place} \d+$", 60)
    assert end(hvdrun, running, number)[0] == code


@pytest.mark.nightly
@is_signalled
def test_a_signal_ends_a_job_while_too_few_are_left(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    running = start(hvdrun, "-np", "2", "--min-np", "2", sleepers="1.2", victims="1.1")
    running.stdout.wait_for(r"\] 1\.2 \d+$", 60)
    returncode, said = end(hvdrun, running, number)
    assert returncode == code
    assert "Traceback" not in said


@is_signalled
def test_a_signal_ends_a_job_while_a_survivor_is_silent(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    running = start(hvdrun, "-np", "3", "--min-np", "1", "--lease", "30s")
    for place in ("0.1", "1.1", "2.1"):
        running.stdout.wait_for(rf"\] {place} trains$", 60)
    pids = [int(running.stdout.wait_for(rf"\] {index}.1 (\d+)$", 60)[1]) for index in range(3)]
    kill(pids[2], signal.SIGSTOP)
    kill(pids[1])
    running.stderr.wait_for(r"was lost: killed by SIGKILL", 60)
    assert end(hvdrun, running, number)[0] == code


@is_signalled
def test_a_signal_ends_a_job_while_hosts_are_waited_for(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    running = start(hvdrun, "-np", "2", "--host-discovery-script", "echo localhost; sleep 0.2")
    running.stderr.wait_for(r"^hvdrun: the hosts offer 1 of the 2 slots", 60)
    wait_until(lambda: any("sleep 0.2" in process.command for process in hvdrun.processes()))
    assert end(hvdrun, running, number)[0] == code
