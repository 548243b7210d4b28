"""Hosts that come later, go, are lost and come back, over real ssh: each gets an agent of its own, and its workers."""

import re

import pytest

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import await_end, end_sessions, find_agents, find_workers
from tests.system.roles import wait_until

DISCOVERS = ("-np", "1", "--min-np", "1", "--host-discovery-script", "cat hosts", "--lease", "2s")
COMES_BACK = ("--blacklist-cooldown-range", "1", "1")
STAY = "echo at $HVD_ADDRESS; while [ ! -e go ]; do sleep 0.05; done"
SECONDS = 30.0


def name_hosts(cluster: Cluster, *lines: str) -> None:
    """What the script answers from now on; never half of it."""
    cluster.write("next", "".join(f"{line}\n" for line in lines)).replace(cluster.directory / "hosts")


def end(cluster: Cluster) -> None:
    """Let all workers end well."""
    cluster.write("go", "")


def test_a_host_that_appears_later_gets_an_agent_and_a_worker(build: BuildCluster) -> None:
    cluster = build([HostPlan("host1", decoys=("docker0",)), HostPlan("host2", decoys=("docker0",))])
    name_hosts(cluster, "host1:1")
    running = cluster.start(*DISCOVERS, "-v", "sh", "-c", STAY)
    first = running.stdout.wait_for(r"^\[0@host1\] at (\S+)$", SECONDS)[1]
    assert not find_agents(cluster["host2"])
    name_hosts(cluster, "host1:1", "host2:1")
    running.stderr.wait_for(r"^hvdrun: the script names new hosts: host2 \(1 slot\)\.$", SECONDS)
    second = running.stdout.wait_for(r"^\[1@host2\] at (\S+)$", SECONDS)[1]
    assert first == cluster["host1"].network.address()
    assert second == cluster["host2"].network.address()
    running.stderr.wait_for(r"^hvdrun: host2: \S+ on eth0: all hosts reach each other in the subnet", SECONDS)
    name_hosts(cluster, "host1:1")
    wait_until(lambda: not find_agents(cluster["host2"]))
    assert find_workers(cluster["host1"], STAY)
    end(cluster)
    assert running.wait(20).returncode == 0


def test_a_host_that_does_not_reach_the_others_is_not_taken(build: BuildCluster) -> None:
    cluster = build(3)
    cluster["host2"].network.ignore(cluster["host1"].network)
    name_hosts(cluster, "host1:1")
    running = cluster.start(*DISCOVERS, "sh", "-c", STAY)
    running.stdout.wait_for(r"^\[0@host1\] at", SECONDS)
    name_hosts(cluster, "host1:1", "host2:1", "host3:1")
    running.stdout.wait_for(r"@host3\] at", SECONDS)
    running.stderr.wait_for("^hvdrun: the host host2 was lost: the hosts cannot all reach each other: ", SECONDS)
    end(cluster)
    finished = running.wait(20)
    assert finished.returncode == 0
    assert "@host2]" not in finished.stdout


def test_a_host_that_is_destroyed_is_lost_and_used_again_when_it_is_back(build: BuildCluster) -> None:
    cluster = build(2)
    name_hosts(cluster, "host1:1", "host2:1")
    running = cluster.start(*DISCOVERS, *COMES_BACK, "sh", "-c", STAY)
    running.stdout.wait_for(r"@host2\] at", SECONDS)
    cluster["host2"].destroy()
    running.stderr.wait_for("^hvdrun: (the )?host host2 was lost: ", SECONDS)
    cluster.lab.reboot("host2")
    running.stderr.wait_for("^hvdrun: the worker in the slot host2:0 is started again.$", SECONDS)
    wait_until(lambda: len(re.findall(r"@host2\] at", running.stdout.text())) == 2, SECONDS)
    end(cluster)
    assert running.wait(20).returncode == 0


@pytest.mark.parametrize("fault", ["cut", "frozen"])
def test_a_host_that_falls_silent_is_replaced_and_what_is_left_of_it_ends(build: BuildCluster, fault: str) -> None:
    cluster = build(2)
    name_hosts(cluster, "host1:1", "host2:1")
    running = cluster.start(*DISCOVERS, *COMES_BACK, "sh", "-c", STAY)
    running.stdout.wait_for(r"@host2\] at", SECONDS)
    (old,) = find_agents(cluster["host2"])
    if fault == "cut":
        cluster["host2"].network.cut()
    else:
        cluster["host2"].freeze()
    running.stderr.wait_for("^hvdrun: (the )?host host2 was lost: its agent was silent for 2 s", SECONDS)
    if fault == "cut":
        wait_until(lambda: not find_workers(cluster["host2"], STAY))
        cluster["host2"].network.mend()
    else:
        cluster["host2"].thaw()
    wait_until(lambda: len(re.findall(r"@host2\] at", running.stdout.text())) == 2, SECONDS)
    wait_until(lambda: old.pid not in {agent.pid for agent in find_agents(cluster["host2"])})
    wait_until(lambda: len(find_workers(cluster["host2"], STAY)) == 1)
    end(cluster)
    assert running.wait(20).returncode == 0
    await_end(cluster, 10)
    end_sessions(cluster)
