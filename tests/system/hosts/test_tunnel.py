"""A launcher that accepts no connection from outside: the agents come through the open ssh connections."""

import re

import pytest

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster

BEHIND_A_FIREWALL = HostPlan("launcher", is_closed=True, sshd=None)
JOB = ("-np", "2", "-H", "host1:1,host2:1")
MEBIBYTE = 1 << 20
JOINS = """
import os
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient
WorkerClient(Bootstrap.read(os.environ)).join(0)
print("joined", flush=True)
"""


@pytest.fixture
def cluster(build: BuildCluster) -> Cluster:
    """Two hosts that cannot connect to the launcher."""
    return build(2, launcher=BEHIND_A_FIREWALL)


def test_workers_join_through_the_tunnel(cluster: Cluster) -> None:
    cluster.write("join.py", JOINS)
    finished = cluster("-v", *JOB, "python", "join.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0@host1] joined", "[1@host2] joined"]
    ways = re.findall(r"^hvdrun: (host\d): .*; it reaches the rendezvous (.*)$", finished.stderr, re.MULTILINE)
    assert ways == [("host1", "through its ssh connection"), ("host2", "through its ssh connection")]


def test_only_the_host_that_needs_it_comes_through_the_tunnel(pair: Cluster) -> None:
    pair.lab.launcher.network.close_door(pair["host2"].network)
    finished = pair("-v", *JOB, "true")
    assert finished.returncode == 0, finished.stderr
    ways = re.findall(r"it reaches the rendezvous (through its ssh connection|at \S+)$", finished.stderr, re.MULTILINE)
    assert [way.rpartition(":")[0] for way in ways] == ["at 10.77.0.250", ""]


@pytest.mark.nightly
def test_a_host_behind_the_tunnel_that_falls_silent_is_lost(cluster: Cluster) -> None:
    running = cluster.start(*JOB, "--lease", "2s", "--launcher-timeout", "2s", "sh", "-c", "echo up; sleep 600")
    running.stdout.wait_for(r"^\[1@host2\] up$", 60)
    cluster["host2"].network.cut()
    finished = running.wait()
    assert finished.returncode == 75
    assert finished.stderr == "hvdrun: host host2 was lost: its agent was silent for 2 s (--lease).\n"
    assert not cluster.settle(with_sshd=False)
    cluster.end_sessions()


@pytest.mark.nightly
def test_much_output_does_not_starve_the_lease(build: BuildCluster) -> None:
    """All of a host's output, and its reports, share one connection: 30 workers write 60 MiB on a slow network."""
    cluster = build(1, launcher=BEHIND_A_FIREWALL)
    cluster["host1"].network.slow(80_000_000)
    script = "yes 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd | head -c 2097152"
    finished = cluster("-np", "30", "-H", "host1:30", "--lease", "3s", "sh", "-c", script)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.count("0123456789abcd\n") == 30 * (2 * MEBIBYTE // 63)


@pytest.mark.nightly
def test_a_reader_that_pauses_longer_than_the_lease_does_not_starve_it(build: BuildCluster) -> None:
    """What is held back is in a channel of its own; and when it flows again, reports pass between its many lines."""
    cluster = build(1, launcher=BEHIND_A_FIREWALL)
    job = "hvdrun -np 2 -H host1:2 --lease 4s sh -c 'yes | head -c 6000000'"
    done = cluster.lab.launcher.run(
        ["sh", "-c", f"{{ {job}; echo $? >code; }} | {{ sleep 6; tr -cd y | wc -c; }}"], directory=cluster.directory
    )
    assert (done.stdout.strip(), done.stderr) == (str(2 * 3_000_000), "")
    assert (cluster.directory / "code").read_text() == "0\n"
