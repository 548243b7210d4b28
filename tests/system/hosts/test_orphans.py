"""Whatever is killed, cut off, frozen or destroyed: the job ends with a sentence, and no host keeps anything of it.

A part that dies is noticed at once. A host that falls silent is lost when the lease has run out, and has ended its own
part by then.
"""

import signal
import time
from collections.abc import Callable

import pytest

from tests.lab.host import Host
from tests.lab.network import Direction
from tests.system.hosts.cluster import Cluster
from tests.system.hosts.roles import await_end, end_sessions, find_agents, find_guardians, find_workers, kill
from tests.system.launcher import Running

LEASE_SECONDS = 3.0
NOTICED_SECONDS = 4.0  # on a busy machine; a fraction of a second elsewhere
LOST = 75
# Each worker has a child in its own session and one in another.
WORKER = "sleep 600 & setsid sleep 601 & echo ready; wait"

# Each worker has a child that hands it tensors, for which Python makes a socket in a folder of its own.
LOADER = """\
import time

import torch.utils.data

import worker_runtime.torch as hvd

hvd.init()
batches = torch.utils.data.DataLoader(torch.arange(8), num_workers=1, persistent_workers=True)
for batch in batches:
    pass
print("ready", flush=True)
time.sleep(600)
"""


def start(cluster: Cluster, *options: str) -> Running:
    """A job of a worker on each of host1 and host2, both of which run."""
    words = ("-np", "2", "-H", "host1:1,host2:1", "--lease", f"{LEASE_SECONDS:g}s", *options)
    running = cluster.start(*words, "sh", "-c", WORKER)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}@host{rank + 1}\] ready$", 20)
    return running


def check_lost(cluster: Cluster, running: Running, how: str, within_seconds: float) -> None:
    """The job ends in time, saying that host2 was lost and how; and nothing of the job is left."""
    finished = running.wait(within_seconds)
    assert (finished.returncode, finished.stderr) == (LOST, f"hvdrun: host host2 was lost: {how}.\n")
    assert not await_end(cluster, NOTICED_SECONDS)


SILENCE = f"its agent was silent for {LEASE_SECONDS:g} s (--lease)"
KILLED = "its agent was killed by a signal"
DISCONNECTED = "its ssh connection was lost"


@pytest.mark.parametrize(
    ("attack", "how"),
    [
        (lambda host: kill(*find_agents(host)), KILLED),
        (lambda host: host.sshd.kill_sessions(), DISCONNECTED),
        (lambda host: host.sshd.kill(), DISCONNECTED),
    ],
    ids=["agent", "sshd's session", "all of sshd"],
)
def test_a_part_that_is_killed_ends_the_job_at_once(pair: Cluster, attack: Callable[[Host], None], how: str) -> None:
    running = start(pair, "--lease", "30s")
    attack(pair["host2"])
    check_lost(pair, running, how, NOTICED_SECONDS)


def test_what_the_children_of_workers_have_made_goes_with_the_job(pair: Cluster) -> None:
    """On the host whose agent is killed, and on the one whose workers are told to end."""
    pair.write("train.py", LOADER)
    running = pair.start("-np", "2", "-H", "host1:1,host2:1", "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}@host{rank + 1}\] ready$", 30)
    kill(*find_agents(pair["host2"]))
    check_lost(pair, running, KILLED, NOTICED_SECONDS)


def test_a_guardian_that_is_killed_is_replaced(pair: Cluster) -> None:
    running = start(pair)
    kill(*find_guardians(pair["host2"]))
    kill(*find_workers(pair["host1"], "600"))
    kill(*find_workers(pair["host2"], "600"))
    running.send(signal.SIGINT)
    assert running.wait(NOTICED_SECONDS).returncode == 130


def test_hvdrun_is_killed(pair: Cluster) -> None:
    running = start(pair, "--lease", "30s")
    running.send(signal.SIGKILL)
    running.wait()
    assert not await_end(pair, NOTICED_SECONDS)


def test_hvdrun_is_stopped_without_notice_for_longer_than_the_lease(pair: Cluster) -> None:
    running = start(pair)
    running.send(signal.SIGSTOP)
    assert not [trace for trace in await_end(pair, LEASE_SECONDS + NOTICED_SECONDS) if "launcher: " not in trace]
    running.send(signal.SIGCONT)
    finished = running.wait(NOTICED_SECONDS)
    assert finished.returncode == LOST
    assert "no report was acknowledged for the lease of 3 s" in finished.stderr


@pytest.mark.parametrize(
    "directions", [(), (Direction.IN,), (Direction.OUT,)], ids=["both ways", "what comes in", "what goes out"]
)
def test_a_host_is_cut_off(pair: Cluster, directions: tuple[Direction, ...]) -> None:
    running = start(pair)
    pair["host2"].network.cut(*directions)
    check_lost(pair, running, SILENCE, LEASE_SECONDS + NOTICED_SECONDS)
    end_sessions(pair)


def test_a_host_is_destroyed(pair: Cluster) -> None:
    running = start(pair)
    pair["host2"].destroy()
    check_lost(pair, running, SILENCE, LEASE_SECONDS + NOTICED_SECONDS)


def test_a_host_freezes_and_thaws_when_it_was_given_up(pair: Cluster) -> None:
    running = start(pair)
    pair["host2"].freeze()
    finished = running.wait(LEASE_SECONDS + NOTICED_SECONDS)
    assert (finished.returncode, finished.stderr) == (LOST, f"hvdrun: host host2 was lost: {SILENCE}.\n")
    pair["host2"].thaw()
    assert not await_end(pair, NOTICED_SECONDS)


def test_the_launcher_is_cut_off(pair: Cluster) -> None:
    running = start(pair)
    pair.lab.launcher.network.cut()
    finished = running.wait(LEASE_SECONDS + NOTICED_SECONDS)
    assert finished.returncode == LOST
    assert not await_end(pair, NOTICED_SECONDS)
    end_sessions(pair)


def test_the_launcher_is_destroyed(pair: Cluster) -> None:
    start(pair)
    pair.lab.launcher.destroy()
    assert not await_end(pair, LEASE_SECONDS + NOTICED_SECONDS)
    for host in pair.lab:
        host.sshd.kill_sessions()  # they wait for a launcher that will not come back


def test_a_host_is_cut_off_while_the_others_start(pair: Cluster) -> None:
    """Its agent has been told of no job, and of no lease but the one that it waits with."""
    slow = '[ "$(hostname)" = host1 ] || sleep 7'
    running = pair.start("-np", "2", "-H", "host1:1,host2:1", "--lease", "3s", "--remote-prefix", slow, "true")
    deadline = time.monotonic() + 20
    while not find_agents(pair["host1"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pair["host1"].network.cut()
    deadline = time.monotonic() + LEASE_SECONDS + NOTICED_SECONDS
    while agents := find_agents(pair["host1"]):
        assert time.monotonic() < deadline, agents
        time.sleep(0.05)
    running.send(signal.SIGINT)
    assert running.wait(NOTICED_SECONDS).returncode == 130
    end_sessions(pair)


def test_a_host_is_cut_off_while_its_workers_write(pair: Cluster) -> None:
    """What they have written cannot be delivered any more, and is not waited for."""
    running = pair.start("-np", "2", "-H", "host1:1,host2:1", "--lease", "3s", "yes")
    running.stdout.wait_for(r"^\[1@host2\] y$", 20)
    pair["host2"].network.cut()
    finished = running.wait(LEASE_SECONDS + NOTICED_SECONDS)
    assert finished.returncode == LOST
    assert not await_end(pair, NOTICED_SECONDS)
    end_sessions(pair)


def test_a_host_is_cut_off_when_its_workers_have_ended(pair: Cluster) -> None:
    """The outcome is decided, and what the host still has to say is not waited for beyond its lease."""
    script = (
        '[ "$HOROVOD_RANK" = 1 ] || exit 0; head -c 1200000 /dev/zero | tr "\\0" "y"; echo; echo ready; touch ended'
    )
    pair["host2"].network.slow(2_000_000)
    running = pair.start("-np", "2", "-H", "host1:1,host2:1", "--lease", "3s", "sh", "-c", script)
    deadline = time.monotonic() + 60
    while not (pair.directory / "ended").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pair["host2"].network.cut()
    running.wait(LEASE_SECONDS + NOTICED_SECONDS)
    assert not await_end(pair, NOTICED_SECONDS)
    end_sessions(pair)
