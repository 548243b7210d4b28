"""Hosts that come later, go, are lost and come back, over real ssh: each gets an agent of its own, and its workers."""

import re
from collections.abc import Callable

import pytest

from tests.lab.host import Host
from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_agents, find_workers
from tests.system.launcher import Running
from tests.waiting import LIMIT_SECONDS, wait_until

DISCOVERS = ("-np", "1", "--min-np", "1", "--host-discovery-script", "cat hosts", "--lease", "2s")
COMES_BACK = ("--blacklist-cooldown-range", "1", "1")
STAY = "echo at $HVD_ADDRESS; while [ ! -e go ]; do sleep 0.05; done"
SECONDS = LIMIT_SECONDS


def end(cluster: Cluster, running: Running) -> None:
    """Let all workers end well."""
    cluster.write("go", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr


def test_a_host_that_appears_later_gets_an_agent_and_a_worker(build: BuildCluster) -> None:
    """The ssh configuration of the host runs a command for longer than the lease, which holds up no other host."""
    cluster = build([HostPlan("host1", decoys=("docker0",)), HostPlan("host2", decoys=("docker0",))])
    cluster.configure_ssh('Match host host2 exec "sleep 4"\n Compression no\n')
    cluster.name_hosts("host1:1")
    running = cluster.start(*DISCOVERS, "-v", "sh", "-c", STAY)
    first = running.stdout.wait_for(r"^\[0@host1\] at (\S+)$", SECONDS)[1]
    assert not find_agents(cluster["host2"])
    cluster.name_hosts("host1:1", "host2:1")
    running.stderr.wait_for(r"^hvdrun: the script names new hosts: host2 \(1 slot\)\.$", SECONDS)
    second = running.stdout.wait_for(r"^\[1@host2\] at (\S+)$", SECONDS)[1]
    assert first == cluster["host1"].network.address()
    assert second == cluster["host2"].network.address()
    running.stderr.wait_for(r"^hvdrun: host2: \S+ on eth0: all hosts reach each other in the subnet", SECONDS)
    cluster.name_hosts("host1:1")
    wait_until(lambda: not find_agents(cluster["host2"]))
    assert find_workers(cluster["host1"], STAY)
    end(cluster, running)
    assert "was lost" not in running.stderr.text()


@pytest.mark.nightly
def test_a_host_that_is_destroyed_is_lost_and_used_again_when_it_is_back(pair: Cluster) -> None:
    pair.name_hosts("host1:1", "host2:1")
    running = pair.start(*DISCOVERS, *COMES_BACK, "sh", "-c", STAY)
    running.stdout.wait_for(r"@host2\] at", SECONDS)
    pair["host2"].destroy()
    running.stderr.wait_for("^hvdrun: (the )?host host2 was lost: ", SECONDS)
    pair.lab.reboot("host2")
    running.stderr.wait_for("^hvdrun: a new worker is started in slot host2:0.$", SECONDS)
    await_second_worker(running)
    end(pair, running)


@pytest.mark.parametrize(
    ("silence", "undo"),
    [
        (lambda host: host.network.cut(), lambda host: host.network.mend()),
        pytest.param(Host.freeze, Host.thaw, marks=pytest.mark.nightly),
    ],
    ids=["cut off", "frozen"],
)
def test_a_host_that_falls_silent_is_replaced_and_what_is_left_of_it_ends(
    pair: Cluster, silence: Callable[[Host], None], undo: Callable[[Host], None]
) -> None:
    host = pair["host2"]
    pair.name_hosts("host1:1", "host2:1")
    running = pair.start(*DISCOVERS, *COMES_BACK, "sh", "-c", STAY)
    running.stdout.wait_for(r"@host2\] at", SECONDS)
    (old,) = find_agents(host)
    silence(host)
    running.stderr.wait_for("^hvdrun: (the )?host host2 was lost: its agent was silent for 2 s", SECONDS)
    undo(host)
    await_second_worker(running)
    wait_until(lambda: old.pid not in {agent.pid for agent in find_agents(host)})
    wait_until(lambda: len(find_workers(host, STAY)) == 1)
    end(pair, running)
    pair.settle(with_sshd=False)
    pair.end_sessions()


def await_second_worker(running: Running) -> None:
    """Wait until host2's worker has been started a second time."""
    wait_until(lambda: len(re.findall(r"@host2\] at", running.stdout.text())) == 2, limit_seconds=SECONDS)
