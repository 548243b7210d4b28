"""A host is lost: all workers are started again, on both hosts when it is back, or on the others."""

import os
import signal

import pytest

from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_agents, kill
from tests.system.scripts import WORLD

OPTIONS = ("--lease", "2s", "--blacklist-cooldown-range", "1", "1")


@pytest.mark.nightly
def test_a_lost_host_is_waited_for_where_the_number_of_workers_is_fixed(pair: Cluster) -> None:
    pair.write("world.py", WORLD)
    job = pair.start("-np", "2", "-H", "host1:1,host2:1", "--max-restarts", "2", *OPTIONS, "python", "world.py")
    for rank, host in enumerate(("host1", "host2")):
        job.stdout.wait_for(rf"round 0 rank {rank} of 2 on {host}", 60)
    kill(*find_agents(pair["host2"]))
    for rank, host in enumerate(("host1", "host2")):
        job.stdout.wait_for(rf"round 1 rank {rank} of 2 on {host}", 60)
    kill(*find_agents(pair["host1"]))  # that of rank 0
    for rank, host in enumerate(("host1", "host2")):
        job.stdout.wait_for(rf"round 2 rank {rank} of 2 on {host}", 60)
    pair.write("end", "")
    finished = job.wait()
    assert finished.returncode == 0, finished.stderr
    # The second counts only if both agents had reported a worker of its round before.
    assert "all 2 workers are started again (1 of 2 restarts left)" in finished.stderr
    pair.end_sessions()


@pytest.mark.nightly
def test_the_others_begin_again_where_fewer_are_enough_and_a_drained_host_costs_no_restart(
    build: BuildCluster,
) -> None:
    cluster = build(3)
    cluster.write("world.py", WORLD)
    options = ("--min-np", "1", "--max-restarts", "1", *OPTIONS[:2], "--blacklist-cooldown-range", "100", "100")
    job = cluster.start("-np", "3", "-H", "host1:1,host2:1,host3:1", *options, "python", "world.py")
    job.stdout.wait_for("round 0 rank 2 of 3 on host3", 60)
    kill(*find_agents(cluster["host1"]))
    job.stdout.wait_for("round 1 rank 1 of 2 on host3", 60)
    (agent,) = find_agents(cluster["host3"])
    os.kill(agent.pid, signal.SIGUSR2)
    job.stdout.wait_for("round 2 rank 0 of 1 on host2", 60)
    cluster.write("end", "")
    finished = job.wait()
    assert finished.returncode == 0, finished.stderr
    assert "host host3 got a stop notice; the only worker is started again; " in finished.stderr
    cluster.end_sessions()
