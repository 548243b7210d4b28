"""The server of a detached job is killed while the job starts."""

import pytest

from tests.system.counting import check_end, start
from tests.system.detached import ask, detach, find_job, find_server, kill_server
from tests.system.launcher import Launcher
from tests.waiting import wait_until

CODE = 7
CONNECTS_LATE = """
import os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        while name == "grpc" and not os.path.exists(os.environ["TEST_CONNECT"]):
            time.sleep(0.02)

if sys.orig_argv[-1] == "hvdrun.agent":
    sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("code", [0, CODE])
def test_a_job_whose_server_is_killed_before_an_agent_has_reported_keeps_its_workers(
    hvdrun: Launcher, code: int
) -> None:
    hvdrun.write("sitecustomize.py", CONNECTS_LATE)
    environment = {"PYTHONPATH": str(hvdrun.directory), "TEST_CONNECT": str(hvdrun.directory / "connect")}
    job = start(hvdrun, code=code, environment=environment)
    former = kill_server(hvdrun)
    wait_until(lambda: find_server(hvdrun) not in {None, former}, "another server")
    hvdrun.write("connect", "")
    check_end(hvdrun, job, code)


JOINS_LATE = """
import os, time
import worker_runtime.torch as hvd
open("begun." + os.environ["RANK"], "w")
while not os.path.exists("join"):
    time.sleep(0.02)
hvd.init()
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("begins", [False, True], ids=["before the first worker", "before a worker has joined"])
def test_a_job_whose_first_server_is_killed_is_started_by_the_next_one(hvdrun: Launcher, *, begins: bool) -> None:
    hvdrun.write("late.py", JOINS_LATE)
    starting = hvdrun.start("--detach", "-np", "2", "python", "late.py")
    wait_until(lambda: find_server(hvdrun) is not None)
    if begins:
        wait_until(lambda: len(list(hvdrun.directory.glob("begun.*"))) == 2, "both to run")
    kill_server(hvdrun)
    wait_until(lambda: len(list(hvdrun.directory.glob("begun.*"))) == 2, "both to run")
    if begins:
        starting.stderr.wait_for("another one goes on", 60)
    assert starting.stdout.text() == "", "no worker has joined"
    hvdrun.write("join", "")
    started = starting.wait()
    assert (started.returncode, started.stdout) == (0, f"{find_job(hvdrun)}\n"), started
    hvdrun.write("go", "")
    assert ask(hvdrun, "wait", find_job(hvdrun)).returncode == 0


DIES_AT_A_LOSS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "hvdrun.job":
            from hvdrun.accounts.history import History
            note = History.note

            def die(history, event, state, effects, now):  # the loss is durable, and has not been told
                if state.losses and not os.path.exists("killed"):
                    open("killed", "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                note(history, event, state, effects, now)

            History.note = die

sys.meta_path.insert(0, Finder())
"""
LOSES_ONE = """
import os, signal
import torch
import worker_runtime.torch as hvd
hvd.init()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.allreduce(torch.ones(1), name="x")
"""


def test_a_loss_that_a_killed_server_could_not_report_is_in_the_log(hvdrun: Launcher) -> None:
    hvdrun.write("sitecustomize.py", DIES_AT_A_LOSS)
    hvdrun.write("train.py", LOSES_ONE)
    environment = {"PYTHONPATH": str(hvdrun.directory)}
    job = detach(hvdrun, "-np", "2", "--min-np", "1", "python", "train.py", environment=environment)
    assert ask(hvdrun, "wait", job).returncode == 0
    log = ask(hvdrun, "logs", job).stderr
    assert (hvdrun.directory / "killed").exists()
    assert log.count("hvdrun: rank 1 (localhost:1) was lost: killed by SIGKILL (signal 9).\n") == 1, log
