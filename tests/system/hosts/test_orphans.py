"""Whatever is killed, cut off, frozen or destroyed: the job ends with a sentence, and no host keeps anything of it.

A part that dies is noticed immediately: hvdrun says how, long before the lease of 10 minutes. A silent host is
lost when the lease has run out, and ends its own part when it has heard nothing for long enough.
"""

import signal
from collections.abc import Callable

import pytest

from tests.lab.host import Host
from tests.lab.network import Direction
from tests.system.hosts.cluster import Cluster
from tests.system.hosts.roles import find_agents, kill
from tests.system.launcher import Running
from tests.waiting import LIMIT_SECONDS, wait_until

JOB = ("-np", "2", "-H", "host1:1,host2:1")
LEASE = ("--lease", "2s", "--launcher-timeout", "2s")
LONG_LEASE = ("--lease", "600s")
LOST = 75
SILENCE = "its agent was silent for 2 s (--lease)"
KILLED = "its agent was killed by a signal"
DISCONNECTED = "its ssh connection was lost"
# Each worker has a child in its own session and one in another.
WORKER = "sleep 600 & setsid sleep 601 & echo ready; wait"

# Each worker has a child that hands it tensors, for which Python makes a socket in a folder of its own.
LOADER = """\
import time

import torch.utils.data

import worker_runtime.torch as hvd

hvd.init()
batches = torch.utils.data.DataLoader(
    torch.arange(8), num_workers=1, persistent_workers=True, multiprocessing_context="fork"
)
for batch in batches:
    pass
print("ready", flush=True)
time.sleep(600)
"""


def start(cluster: Cluster, *options: str, command: tuple[str, ...] = ("sh", "-c", WORKER)) -> Running:
    """A job of a worker on each of host1 and host2, both of which run."""
    running = cluster.start(*JOB, *options, *command)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}@host{rank + 1}\] ready$", LIMIT_SECONDS)
    return running


def check_lost(cluster: Cluster, running: Running, how: str) -> None:
    """The job ends, saying that host2 was lost and how; and nothing of the job is left."""
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (LOST, f"hvdrun: host host2 was lost: {how}.\n")
    assert not cluster.settle(with_sshd=False)


@pytest.mark.parametrize(
    ("attack", "how"),
    [
        (lambda host: kill(*find_agents(host)), KILLED),
        (lambda host: host.sshd.kill_sessions(), DISCONNECTED),
        pytest.param(lambda host: host.sshd.kill(), DISCONNECTED, marks=pytest.mark.nightly),
    ],
    ids=["agent", "sshd's session", "all of sshd"],
)
def test_a_part_that_is_killed_ends_the_job(pair: Cluster, attack: Callable[[Host], None], how: str) -> None:
    running = start(pair, *LONG_LEASE)
    attack(pair["host2"])
    check_lost(pair, running, how)


@pytest.mark.nightly
def test_files_of_the_workers_children_go_with_the_job(pair: Cluster) -> None:
    """On the host whose agent is killed, and on the one whose workers are ordered to end."""
    pair.write("train.py", LOADER)
    running = start(pair, *LONG_LEASE, command=("python", "train.py"))
    kill(*find_agents(pair["host2"]))
    check_lost(pair, running, KILLED)


def test_a_job_ends_on_all_hosts_when_hvdrun_is_killed(pair: Cluster) -> None:
    running = start(pair, *LONG_LEASE)
    running.send(signal.SIGKILL)
    running.wait()
    assert not pair.settle()


@pytest.mark.nightly
def test_a_job_ends_when_hvdrun_is_stopped_for_longer_than_its_hosts_wait(pair: Cluster) -> None:
    running = start(pair, *LEASE)
    running.send(signal.SIGSTOP)
    wait_until(lambda: all(trace.startswith("launcher: ") for trace in pair.find_left(with_sshd=False)))
    running.send(signal.SIGCONT)
    finished = running.wait()
    assert finished.returncode == LOST
    assert "no report was acknowledged for 2 s (--launcher-timeout)" in finished.stderr


@pytest.mark.parametrize(
    "fault",
    [
        lambda host: host.network.cut(),
        pytest.param(lambda host: host.network.cut(Direction.IN), marks=pytest.mark.nightly),
        pytest.param(lambda host: host.network.cut(Direction.OUT), marks=pytest.mark.nightly),
        pytest.param(Host.destroy, marks=pytest.mark.nightly),
    ],
    ids=["cut off", "cut off from what comes in", "cut off from what goes out", "destroyed"],
)
def test_a_host_that_falls_silent_is_lost(pair: Cluster, fault: Callable[[Host], None]) -> None:
    running = start(pair, "--lease", "2s", "--launcher-timeout", "5s")  # the host itself gives up later
    fault(pair["host2"])
    check_lost(pair, running, SILENCE)
    pair.end_sessions()


def test_a_host_that_thaws_after_its_loss_ends_its_processes(pair: Cluster) -> None:
    running = start(pair, *LEASE)
    pair["host2"].freeze()
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (LOST, f"hvdrun: host host2 was lost: {SILENCE}.\n")
    pair["host2"].thaw()
    assert not pair.settle(with_sshd=False)


def test_a_job_ends_on_all_hosts_when_the_launcher_is_cut_off(pair: Cluster) -> None:
    running = start(pair, *LEASE)
    pair.lab.launcher.network.cut()
    assert running.wait().returncode == LOST
    assert not pair.settle(with_sshd=False)
    pair.end_sessions()


@pytest.mark.nightly
def test_a_host_that_is_cut_off_while_the_others_start_ends_its_agent(pair: Cluster) -> None:
    """The host's agent has received no job, and no lease but the one that it waits with."""
    slow = f'[ "$(hostname)" = host1 ] || while [ ! -e {pair.directory}/go ]; do sleep 0.05; done'
    running = pair.start(*JOB, *LEASE, "--remote-prefix", slow, "true")
    wait_until(lambda: find_agents(pair["host1"]) != [])
    pair["host1"].network.cut()
    wait_until(lambda: find_agents(pair["host1"]) == [])
    running.send(signal.SIGINT)
    assert running.wait().returncode == -signal.SIGINT
    pair.write("go", "")
    pair.end_sessions()


@pytest.mark.nightly
def test_output_of_a_host_that_is_cut_off_is_not_waited_for(pair: Cluster) -> None:
    running = pair.start(*JOB, *LEASE, "yes")
    running.stdout.wait_for(r"^\[1@host2\] y$", 60)
    pair["host2"].network.cut()
    assert running.wait().returncode == LOST
    assert not pair.settle(with_sshd=False)
    pair.end_sessions()
