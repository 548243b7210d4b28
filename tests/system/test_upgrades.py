"""Another version of hvdrun is installed over the one with which a detached job runs."""

import shutil
from pathlib import Path

import pytest

from hvdrun.version import __version__
from tests.house.sources import ROOT
from tests.system.detached import ask, detach, find_job, find_server, kill_server, wait_for_words
from tests.system.launcher import Launcher
from tests.system.roles import kill
from tests.waiting import wait_until

PACKAGES = ("hvdrun", "protos", "rendezvous", "worker_runtime")
BROKEN = "def broken(:\n"
TRAINS = """
import os, time
import torch
import worker_runtime.torch as hvd
hvd.init()
state = hvd.elastic.TorchState(step=0)

@hvd.elastic.run
def train(state):
    is_over = False
    while not is_over:
        is_over = bool(hvd.allreduce(torch.tensor(int(os.path.exists("go"))), op=hvd.Max, name="go"))
        state.step += 1
        open(f"step.{state.step}.of.{hvd.size()}.in.{os.getpid()}", "w").close()
        time.sleep(0.02)
        state.commit()

train(state)
os.write(1, b"steps: %d\\n" % state.step)
"""


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the packages for itself."""
    folder = tmp_path_factory.mktemp("installed")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def start(hvdrun: Launcher, installed: Path, *words: str) -> str:
    """Start an elastic job of two workers with the code in this folder; its name."""
    hvdrun.write("train.py", TRAINS)
    environment = {"PYTHONPATH": str(installed)}
    job = detach(hvdrun, *words, "-np", "2", "--min-np", "1", "python", "train.py", environment=environment)
    wait_until(lambda: len(list_workers(hvdrun)) == 2, "both to train")
    return job


def list_workers(hvdrun: Launcher) -> list[int]:
    """The pids of the workers that have trained in a job of two."""
    return sorted({int(path.name.rpartition(".")[2]) for path in hvdrun.directory.glob("step.*.of.2.in.*")})


def kill_a_worker(hvdrun: Launcher) -> None:
    """Kill -9 of one."""
    kill(list_workers(hvdrun)[0])


def check_end(hvdrun: Launcher, job: str) -> str:
    """The job ends with 0 and with each step; what hvdrun has said."""
    hvdrun.write("go", "")
    waited, log = ask(hvdrun, "wait", job), ask(hvdrun, "logs", job)
    assert waited.returncode == 0, log
    steps = {int(path.name.split(".")[1]) for path in hvdrun.directory.glob("step.*")}
    assert steps == set(range(1, len(steps) + 1))
    assert f"steps: {len(steps)}\n" in log.stdout
    return log.stderr


def test_a_job_has_the_code_of_its_beginning_to_its_end(hvdrun: Launcher, installed: Path) -> None:
    """A server, an answer of the agents and a forked worker that begin after an upgrade need no file of it."""
    job = start(hvdrun, installed)
    for path in installed.rglob("*.py"):
        path.write_text(BROKEN)
    former = find_server(hvdrun)
    kill_server(hvdrun)
    wait_until(lambda: find_server(hvdrun) not in {None, former}, "another server")
    # An agent that does not know the new server yet does not answer.
    wait_until(lambda: "train.py" in ask(hvdrun, "stacks", job).stdout.partition("\n")[2], "the agent to answer")
    kill_a_worker(hvdrun)
    wait_until(lambda: len(list_workers(hvdrun)) == 3, "a forked worker to train")
    said = check_end(hvdrun, job)
    assert "Error" not in said


def test_a_worker_that_imports_another_version_is_refused(hvdrun: Launcher, installed: Path) -> None:
    job = start(hvdrun, installed, "--no-prefork")
    version = installed / "worker_runtime" / "membership" / "version.py"
    version.write_text(version.read_text().replace(f'"{__version__}"', '"99.0"', 1))
    kill_a_worker(hvdrun)
    sentence = "this worker imports hvdrun 99.0, and its job runs with hvdrun "
    wait_for_words(hvdrun, job, sentence)
    check_end(hvdrun, find_job(hvdrun))
