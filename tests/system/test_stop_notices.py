"""Stop notices: a job that receives one saves and ends with 75, and one host is left without a step being lost."""

import random
import re
import signal
import time

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent, kill
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

FIRST_STEPS_SECONDS = 0.3  # in which the notice comes, at a random moment
TRAINS = """
import os, sys, time, torch
import horovod.torch as hvd

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(1)
network = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters())
state = hvd.elastic.TorchState(model=network, optimizer=optimizer, step=0)

def step():
    optimizer.zero_grad()
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.step += 1
    if hvd.rank() == state.step % hvd.size():
        time.sleep(0.002)  # no other comes at the same time
    if state.step == 5:
        print("pid", os.getpid(), flush=True)
"""
STATIC = f"""{TRAINS}
while not hvd.stopping():
    step()
print("stops after", state.step, flush=True)
sys.exit(75)
"""
PLAIN = """
import os, sys, time, torch
import horovod.torch as hvd

hvd.init()
step = 0
while not hvd.stopping():
    step += 1
    hvd.allreduce(torch.ones(1))
    time.sleep(0.002 * hvd.rank())
    if step == 5:
        print("pid", os.getpid(), flush=True)
print("stops after", step, flush=True)
sys.exit(75)
"""
ELASTIC = f"""{TRAINS}
@hvd.elastic.run
def train(state):
    print("enters at", state.step, "of", hvd.size(), flush=True)
    while not hvd.stopping() and not (state.step >= 100 and hvd.size() == 1):
        step()
        state.commit()

train(state)
print("stops after", state.step, flush=True)
sys.exit(75 if hvd.stopping() else 0)
"""
GOES_ON = f"{WAIT_FOR}\nprint('pid', os.getpid(), flush=True)\nwait_for('nothing')\n"
STOPS = "hvdrun: the job has ended, as its stop notice asked (exit code 75): start it again to continue.\n"
DRAINS = "hvdrun: host localhost got a stop notice: the job continues without it.\n"


def find_pids(running: Running, count: int) -> list[int]:
    """The workers' pids, when all have made some steps."""
    wait_until(lambda: len(re.findall(r"pid \d+\n", running.stdout.text())) == count, "the first steps")
    return [int(pid) for pid in re.findall(r"pid (\d+)\n", running.stdout.text())]


def notify(hvdrun: Launcher, running: Running, pids: list[int], whom: str) -> None:
    """Send SIGUSR2 at a random moment."""
    chance = random.Random()  # noqa: S311 - a story, not a secret
    time.sleep(chance.random() * FIRST_STEPS_SECONDS)  # the moment is tested, and no event marks it
    agent = find_agent(hvdrun) if whom == "agent" else None
    kill({"hvdrun": running.pid, "worker": chance.choice(pids), "agent": agent}[whom], signal.SIGUSR2)


@pytest.mark.parametrize(
    ("script", "ranks", "whom"),
    rest_nightly(
        [
            (STATIC, 2, "worker"),
            (STATIC, 3, "hvdrun"),
            (STATIC, 2, "agent"),
            (STATIC, 1, "hvdrun"),
            (PLAIN, 2, "hvdrun"),
            (ELASTIC, 2, "hvdrun"),
        ]
    ),
    ids=["a worker", "hvdrun", "an agent", "alone", "no optimizer", "elastic"],
)
def test_all_ranks_learn_of_a_notice_at_the_same_step_and_end_with_75(
    hvdrun: Launcher, script: str, ranks: int, whom: str
) -> None:
    path = hvdrun.write("train.py", script)
    options = ("--min-np", "1") if script is ELASTIC else ()
    running = hvdrun.start("-np", str(ranks), *options, "--grace", "60s", "python", path)
    notify(hvdrun, running, find_pids(running, ranks), whom)
    finished = running.wait()
    assert finished.returncode == 75
    stops = re.findall(r"stops after (\d+)\n", finished.stdout)
    assert len(stops) == ranks
    assert len(set(stops)) == 1, finished.stdout
    assert "(--grace) to save what they need and to end.\n" in finished.stderr.splitlines(keepends=True)[0]
    assert finished.stderr.splitlines(keepends=True)[1:] == [STOPS]


def test_a_drained_host_is_left_at_a_commit_and_no_worker_is_lost(hvdrun: Launcher) -> None:
    late = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # SIGTERM may come after the refusal
    path = hvdrun.write("train.py", late + ELASTIC)
    hosts = ("-H", "localhost:1,127.0.0.1:1", "--min-np", "1", "--blacklist-cooldown-range", "500", "600")
    running = hvdrun.start("-np", "2", *hosts, "python", path)
    find_pids(running, 2)
    (first,) = re.findall(r"^\[0@localhost\] pid (\d+)\n", running.stdout.text(), re.MULTILINE)
    kill(int(first), signal.SIGUSR2)
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, f"{DRAINS}hvdrun: the job continues with 1 worker.\n")
    left, again = re.findall(r"^\[0@127.0.0.1\] (?:enters at|stops after) (\d+)", finished.stdout, re.MULTILINE)
    assert 5 <= int(left) < int(again) == 100
    assert "[0@localhost] stops" not in finished.stdout


def test_a_worker_that_does_not_end_after_a_notice_is_ended(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "2", "--grace", "1s", "python", hvdrun.write("stay.py", GOES_ON))
    find_pids(running, 2)
    running.send(signal.SIGUSR2)
    finished = running.wait()
    assert finished.returncode == 143
    assert re.search(
        r"^hvdrun: rank 0 \(localhost:0\) was still running 1 s \(--grace\) after", finished.stderr, re.MULTILINE
    )


def test_a_notice_that_ends_a_worker_before_init_ends_the_job_with_75(hvdrun: Launcher) -> None:
    running = hvdrun.start("-np", "2", "python", hvdrun.write("stay.py", GOES_ON))
    kill(find_pids(running, 2)[0], signal.SIGUSR2)
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (75, STOPS)
