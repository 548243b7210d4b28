"""kill -9 of whatever belongs to a job: within five seconds no process, no socket and no folder of it is left.

That nothing is left is checked after each test, by the fixture.
"""

import os
import random
import re
import signal
import time

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent, find_guardian, kill, wait_until

# Every worker has a child, one that has left the session and cannot be asked to end, and a daemon.
FAMILY = """
import os, pathlib, subprocess, time

subprocess.Popen(["sh", "-c", "echo child $$ lives; sleep 600; true"])
subprocess.Popen(["sh", "-c", "trap '' TERM; echo stray $$ lives; sleep 600; true"], start_new_session=True)
if os.fork() == 0:  # a daemon that was never executed
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"daemon %d lives\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
os.write(1, b"worker %d lives\\n" % os.getpid())  # print would write its line in pieces, between the others
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
MEMBERS = ("worker", "child", "stray", "daemon")

JOINS = """
import os
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
print("joining", flush=True)
client.join(0)
"""

BLOCKS = """
import torch
import worker_runtime.torch as hvd

hvd.init()
print("ready", flush=True)
if hvd.rank() == 0:
    hvd.allreduce(torch.ones(1), name="nobody else asks for it")
hvd.broadcast(torch.ones(1), root_rank=0, name="waits for rank 0")
"""

STARTS = 6
START_SECONDS = 0.4  # about what it takes until the workers run


def start_family(hvdrun: Launcher, *options: str) -> tuple[Running, dict[tuple[str, int], int]]:
    """A job of two workers, and the pids of (member, rank), once all live."""
    hvdrun.write("train.py", FAMILY)
    running = hvdrun.start("-np", "2", *options, "python", "train.py")
    pids = {}
    for rank in range(2):
        for member in MEMBERS:
            found = running.stdout.wait_for(rf"^\[{rank}\] {member} (\d+) lives$", 20)
            pids[member, rank] = int(found[1])
    return running, pids


@pytest.fixture(params=[(), ("--no-prefork",)], ids=["forked", "executed"])
def family(hvdrun: Launcher, request: pytest.FixtureRequest) -> tuple[Running, dict[tuple[str, int], int]]:
    """See start_family; the workers forked or executed."""
    return start_family(hvdrun, *request.param)


Family = tuple[Running, dict[tuple[str, int], int]]


def test_hvdrun(hvdrun: Launcher, family: Family) -> None:
    running, _ = family
    running.send(signal.SIGKILL)
    assert running.wait(5).returncode == -signal.SIGKILL
    assert not hvdrun.watch.settle(), "left after kill -9 of hvdrun"


def test_the_agent(hvdrun: Launcher, family: Family) -> None:
    running, _ = family
    kill(find_agent(hvdrun))
    finished = running.wait(10)
    assert finished.returncode == 75
    assert finished.stderr == "hvdrun: host localhost was lost: its agent ended with signal 9.\n"


def test_hvdrun_and_the_agent_at_the_same_instant(hvdrun: Launcher, family: Family) -> None:
    running, _ = family
    agent = find_agent(hvdrun)
    running.send(signal.SIGKILL)
    kill(agent)
    assert running.wait(5).returncode == -signal.SIGKILL


def test_the_guardian_and_then_the_agent(hvdrun: Launcher, family: Family) -> None:
    running, _ = family
    first = kill(find_guardian(hvdrun))
    wait_until(lambda: find_guardian(hvdrun) not in {None, first})
    kill(find_agent(hvdrun))
    assert running.wait(10).returncode == 75


def test_the_guardian_s_death_is_nothing_to_the_job(hvdrun: Launcher) -> None:
    running, _ = start_family(hvdrun)
    first = kill(find_guardian(hvdrun))
    wait_until(lambda: find_guardian(hvdrun) not in {None, first})
    hvdrun.write("go", "")
    finished = running.wait(10)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_worker(hvdrun: Launcher, family: Family) -> None:
    running, pids = family
    kill(pids["worker", 1])
    finished = running.wait(10)
    assert finished.returncode == 137
    assert re.match(r"hvdrun: rank 1 on localhost \(slot 1\) failed first after .*: killed by SIGKILL", finished.stderr)
    assert hvdrun.processes("lives") == ()


def test_a_worker_s_child_is_the_worker_s_own_business(hvdrun: Launcher) -> None:
    running, pids = start_family(hvdrun)
    kill(pids["child", 0])
    kill(pids["stray", 1])
    hvdrun.write("go", "")
    finished = running.wait(10)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert hvdrun.processes("lives") == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_an_agent_that_is_asked_to_end_takes_its_workers_along(hvdrun: Launcher, number: signal.Signals) -> None:
    running, _ = start_family(hvdrun)
    agent = find_agent(hvdrun)
    assert agent is not None
    os.kill(agent, number)
    finished = running.wait(10)
    assert finished.returncode == 75
    how = "its agent ended with exit code 1: a signal asked it to end"
    assert finished.stderr == f"hvdrun: host localhost was lost: {how}.\n"
    assert hvdrun.processes("lives") == ()


@pytest.mark.parametrize("victim", ["hvdrun", "agent"])
def test_while_workers_wait_for_others_to_join(hvdrun: Launcher, victim: str) -> None:
    hvdrun.write("train.py", f"import os, time\nif os.environ['HOROVOD_RANK'] == '1': time.sleep(600)\n{JOINS}")
    running = hvdrun.start("-np", "2", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] joining$", 20)
    kill(running.pid if victim == "hvdrun" else find_agent(hvdrun))
    assert running.wait(10).returncode == (75 if victim == "agent" else -signal.SIGKILL)


@pytest.mark.parametrize("victim", ["hvdrun", "agent"])
def test_while_workers_are_blocked_in_collectives(hvdrun: Launcher, victim: str) -> None:
    hvdrun.write("train.py", BLOCKS)
    running = hvdrun.start("-np", "2", "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] ready$", 60)
    kill(running.pid if victim == "hvdrun" else find_agent(hvdrun))
    assert running.wait(10).returncode == (75 if victim == "agent" else -signal.SIGKILL)


def test_a_worker_while_the_others_are_blocked_in_a_collective(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", BLOCKS.replace('print("ready"', 'import os\nprint("ready", os.getpid()'))
    running = hvdrun.start("-np", "2", "python", "train.py")
    running.stdout.wait_for(r"^\[1\] ready", 60)
    kill(int(running.stdout.wait_for(r"^\[0\] ready (\d+)$", 60)[1]))
    finished = running.wait(10)
    assert finished.returncode == 137
    assert "hvdrun: rank 0 on localhost (slot 0) failed first" in finished.stderr


def test_hvdrun_at_any_moment_of_the_start(hvdrun: Launcher) -> None:
    moments = random.Random(9)  # noqa: S311 - moments, not secrets
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "sleep", "600")
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        running.send(signal.SIGKILL)
        assert running.wait(5).returncode == -signal.SIGKILL
    assert not hvdrun.watch.settle()


def test_the_agent_at_any_moment_of_the_start(hvdrun: Launcher) -> None:
    moments = random.Random(10)  # noqa: S311 - moments, not secrets
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "sleep", "600")
        wait_until(lambda: find_agent(hvdrun) is not None)
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        kill(find_agent(hvdrun))
        finished = running.wait(10)
        assert (finished.returncode, finished.stderr) in {
            (125, "hvdrun: the host 'localhost' was lost before the job began: its agent ended with signal 9.\n"),
            (75, "hvdrun: host localhost was lost: its agent ended with signal 9.\n"),
        }
        assert not hvdrun.watch.settle()


def test_an_agent_that_is_stopped_for_longer_than_its_lease_is_lost(hvdrun: Launcher) -> None:
    running, _ = start_family(hvdrun, "--lease", "1s")
    agent = find_agent(hvdrun)
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    running.stderr.wait_for(r"^hvdrun: host localhost was lost: its agent was silent for 1 s \(--lease\)\.$", 30)
    assert running.wait(20).returncode == 75  # though nobody wakes it: it is killed, and its guardian does the rest
    assert hvdrun.processes("lives") == ()
