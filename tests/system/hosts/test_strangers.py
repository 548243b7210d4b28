"""A job on two hosts under fire from two others, at everything on which it listens for its own hosts."""

import subprocess

import pytest

from tests.house.sources import ROOT
from tests.lab.host import Host
from tests.lab.plan import HostPlan
from tests.system.attack import DRIPPING, HALF_CLOSED, SILENT
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.leftovers import list_listening
from tests.system.storm import ATTACK, TRAINS, Storm, name_target

MEMBERS = ("host1", "host2")
_LOOPBACK = ("127.", "::1 ")


def start_attacker(host: Host) -> "subprocess.Popen[bytes]":
    return host.start(["python", *ATTACK], directory=ROOT, stdin=subprocess.PIPE)


def find_targets(cluster: Cluster) -> set[str]:
    """What others can reach of the job; sshd is not the job's."""
    hosts = [cluster.lab.launcher, *(cluster[name] for name in MEMBERS)]
    processes = [process for host in hosts for process in host.processes() if not process.program.startswith("sshd")]
    targets = {name_target(listener) for process in processes for listener in list_listening(process.pid)}
    return {target for target in targets if not target.startswith(_LOOPBACK)}


def find_doors(cluster: Cluster) -> set[str]:
    """Where rank 0 listens while it waits for rank 1: for gloo, and for a probe of who reaches whom."""
    workers = [process for process in cluster["host1"].processes() if process.command[1:] == ("train.py",)]
    return {name_target(listener) for worker in workers for listener in list_listening(worker.pid)}


@pytest.mark.nightly
def test_a_job_forms_and_trains_with_strangers_on_other_hosts_at_all_its_ports(build: BuildCluster) -> None:
    """The connections of one of these hosts stay half open."""
    plans = [*map(HostPlan, MEMBERS), HostPlan("stranger", sshd=None), HostPlan("half", sshd=None)]
    cluster = build(plans)
    cluster.write("train.py", TRAINS)
    cluster["half"].network.ignore_answers()
    with (
        Storm(start_attacker(cluster["stranger"]), lambda: find_targets(cluster)) as storm,
        Storm(start_attacker(cluster["half"]), lambda: storm.targets) as half,
    ):
        running = cluster.start("-np", "2", "-H", "host1:1,host2:1", "python", "train.py", forks=True)
        storm.await_idle(lambda: find_doors(cluster))
        cluster.write("go", "")
        finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = [f"[{rank}@{MEMBERS[rank]}] {line}" for rank in range(2) for line in ("all files True", "sum 2")]
    assert sorted(finished.stdout.splitlines()) == sorted(lines)
    storm.check(3)  # the rendezvous, the sequencer, and gloo's of rank 0
    assert len(half.targets) >= 3
    # Of others it counts attempts, also those that the end of the job has ended.
    assert not any(done[kind] for done in half.done.values() for kind in (SILENT, HALF_CLOSED, DRIPPING))
