"""Hosts are lost while a job trains on them: it continues with the others, and only with them, and no step is lost.

A host that is cut off lives on, and ends its part of the job itself. At the end of a test one process repeats the steps
that counted, and must get the same parameters.
"""

import os
import re
import signal

import pytest

from tests.lab.host import Host
from tests.lab.network import Direction
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_agents, kill
from tests.system.hosts.training import LEASE_SECONDS, LIMIT_SECONDS, LOST, Training
from tests.system.recording import Recording

# How long a lost host is not used, in seconds: longer than the test, or so short that the host is used again.
FOR_GOOD = ("--blacklist-cooldown-range", "100", "100")
COMES_BACK = ("--blacklist-cooldown-range", "1", "1")
ALL_HOSTS = ("host1", "host2", "host3")


@pytest.mark.nightly
def test_a_job_survives_the_loss_of_one_host_after_another_and_of_rank_0_s_host_first(build: BuildCluster) -> None:
    """At first a worker holds its interpreter's lock for longer than the lease, and does not count as lost."""
    cluster = build(4)
    training = Training(cluster, *ALL_HOSTS, "host4", options=FOR_GOOD)
    training.be_busy("host2", LEASE_SECONDS + 0.5)
    training.lose("host1", Host.destroy, "host2", "host3", "host4")
    training.lose("host3", lambda host: host.network.cut(Direction.IN), "host2", "host4")
    training.lose("host2", lambda host: host.network.cut(Direction.OUT), "host4")
    steps = training.end("host4")
    assert [len(step.members[0]) for step in (steps[0], steps[-1])] == [4, 1]
    cluster.end_sessions()


def test_lost_workers_are_replaced_and_get_the_state_of_the_others(pair: Cluster) -> None:
    both = ("host1", "host2")
    training = Training(pair, *both, options=COMES_BACK)

    worker = training.find_worker("host2")
    training.lose("host2", lambda _: os.kill(worker.pid, signal.SIGSTOP), "host1", parts=[worker])
    training.await_line("rank 1 (host2:0) was lost: the worker host2:0 was stopped for longer than the lease of 2 s")
    training.await_members(*both)

    training.lose("host2", lambda host: host.network.cut(), "host1")
    pair["host2"].network.mend()
    training.await_members(*both)

    training.lose("host2", lambda host: kill(*find_agents(host)), "host1")
    training.await_members(*both)

    assert training.end(*both)[-1].members[0] == (0, 1)
    pair.end_sessions()


@pytest.mark.nightly
def test_hosts_that_do_not_reach_each_other_for_a_while_are_reported_and_no_worker_is_lost(build: BuildCluster) -> None:
    """The two hosts reach the launcher and the third host."""
    cluster = build(3)
    training = Training(cluster, *ALL_HOSTS, options=COMES_BACK)
    cluster["host2"].network.ignore(cluster["host3"].network)
    one, other = (re.escape(cluster[name].network.address()) for name in ("host2", "host3"))
    who = rf"rank [12] cannot reach ({one}|{other}), which has acknowledged nothing for 3\.33 s"
    training.running.stderr.wait_for(rf"^hvdrun: {who}\.\nhvdrun: the job continues with 3 workers\.$", LIMIT_SECONDS)
    cluster["host2"].network.mend()
    training.await_members(*ALL_HOSTS)
    assert len(training.end(*ALL_HOSTS)[-1].members[0]) == len(ALL_HOSTS)
    assert "was lost" not in training.running.stderr.text()
    cluster.end_sessions()


@pytest.mark.nightly
def test_an_agent_that_wakes_up_after_it_was_given_up_ends_itself_and_its_workers(build: BuildCluster) -> None:
    """The agent's watchdog is stopped, too: otherwise the watchdog would end the agent and its workers sooner."""
    cluster = build(2)
    training = Training(cluster, "host1", "host2", options=FOR_GOOD)
    parts = training.list_parts("host2")
    stopped = [process for process in parts if "hvdrun.agent" in str(process)]

    def stop(_: Host) -> None:
        for process in stopped:
            os.kill(process.pid, signal.SIGSTOP)

    training.lose("host2", stop, "host1", parts=())
    # The stopped processes, and the workers that they should have ended, are still there.
    assert {process.pid for process in parts} <= {process.pid for process in training.list_parts("host2")}
    for process in stopped:
        os.kill(process.pid, signal.SIGCONT)
    training.await_gone(parts, "host2")
    training.end("host1")


@pytest.mark.nightly
def test_no_host_continues_when_the_launcher_is_cut_off(build: BuildCluster) -> None:
    """All workers still reach each other, and could continue; but the launcher would not learn it."""
    cluster = build(2)
    training = Training(cluster, "host1", "host2", options=FOR_GOOD)
    cluster.lab.launcher.network.cut()
    finished = training.running.wait(LIMIT_SECONDS)
    assert finished.returncode == LOST
    for host in ("host1", "host2"):
        assert f"hvdrun: host {host} was lost: its agent was silent for 2 s (--lease)" in finished.stderr
    assert not cluster.settle(with_sshd=False)
    assert {step.members for step in Recording(training.notes).list_steps()} == {((0, 1),)}
    cluster.end_sessions()
