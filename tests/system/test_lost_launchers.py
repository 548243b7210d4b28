"""The launcher of a detached job is killed: its workers train on, and their agent ends when nobody comes."""

import pytest

from tests.system.detached import ask, detach, kill_launcher
from tests.system.launcher import Launcher
from tests.system.roles import find_agent
from tests.waiting import wait_until

TRAINS = """
import os, time
import torch
import worker_runtime.torch as hvd
hvd.init()
total = 0.0
for step in range(40):
    if step == 10:
        open(f"half.{hvd.rank()}", "w").write(str(os.getpid()))
        while not os.path.exists("go"):
            time.sleep(0.02)
    total += hvd.allreduce(torch.ones(1) * step, op=hvd.Sum).item()
    print("step", step, flush=True)
open(f"end.{hvd.rank()}", "w").write(f"{os.getpid()} {total}")
"""
COUNTS = """
import sys, time
for number in range(20_000):
    sys.stdout.write(f"{number}\\n")
    if number % 5_000 == 0:
        sys.stdout.flush()
        time.sleep(0.2)
sys.stdout.write("over")
sys.stdout.flush()
time.sleep(1.0)
sys.stdout.write(" and over")
"""
SAVES = """
import os, time
open("running", "w")
while not os.path.exists(os.path.join(os.path.dirname(os.environ["HVD_SOCKET"]), "stopping")):
    time.sleep(0.02)
open("saved", "w")
"""
SHORT = ("--server-timeout", "5s", "--lease", "5s")  # beside other jobs an agent may be silent for seconds


def read(hvdrun: Launcher, *names: str) -> list[str]:
    return [(hvdrun.directory / name).read_text() for name in names]


def test_workers_whose_launcher_is_killed_train_to_their_end_and_leave_nothing(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    job = detach(hvdrun, *SHORT, "-np", "2", "python", "train.py")
    halves, ends = [[f"{name}.{rank}" for rank in range(2)] for name in ("half", "end")]
    wait_until(lambda: all((hvdrun.directory / name).exists() for name in halves))
    agent = find_agent(hvdrun)
    kill_launcher(hvdrun)
    wait_until(lambda: ask(hvdrun, "wait", job).returncode == 69)
    assert find_agent(hvdrun) == agent
    hvdrun.write("go", "")
    wait_until(lambda: all((hvdrun.directory / name).exists() for name in ends), "the workers to train to their end")
    total = 2.0 * sum(range(40))
    assert read(hvdrun, *ends) == [f"{pid} {total}" for pid in read(hvdrun, *halves)]
    wait_until(lambda: hvdrun.processes() == (), "the agent to end")


def test_the_output_of_a_detached_job_is_complete(hvdrun: Launcher) -> None:
    hvdrun.write("count.py", COUNTS)
    job = detach(hvdrun, "-np", "2", "--no-prefix", "python", "count.py")
    assert ask(hvdrun, "wait", job).returncode == 0
    lines = ask(hvdrun, "logs", job).stdout.splitlines()
    assert sorted(lines) == sorted([*(f"{number}" for number in range(20_000)), "over and over"] * 2)


@pytest.mark.parametrize("is_asked", [False, True], ids=["after the server timeout", "asked to"])
def test_workers_whose_launcher_is_killed_may_save_before_they_are_ended(hvdrun: Launcher, *, is_asked: bool) -> None:
    hvdrun.write("save.py", SAVES)
    limits = ("--lease", "5s") if is_asked else SHORT
    job = detach(hvdrun, *limits, "-np", "1", "python", "save.py")
    wait_until((hvdrun.directory / "running").exists)
    kill_launcher(hvdrun)
    if is_asked:
        assert ask(hvdrun, "stop", "--here", job).returncode == 0
    wait_until(lambda: hvdrun.processes() == (), "the agent to end")
    assert (hvdrun.directory / "saved").exists()
