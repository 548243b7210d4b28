"""Which of the hosts' networks a job uses: the one that was proven, for the rendezvous, torch's store and gloo."""

import re

import pytest

from tests.lab.plan import Family, HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Finished

JOB = ("-v", "-np", "2", "-H", "host1:1,host2:1")
IPV6_ONLY = (Family.IPV6,)
PRINTS = ("sh", "-c", "echo $GLOO_SOCKET_IFNAME $HVD_ADDRESS $MASTER_ADDR")
# Each rank prints its variables, and to whom it is connected when gloo has connected all.
TRAINS = """
import os
import sys
import psutil
import torch
import worker_runtime.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(100_000), op=hvd.Sum)
assert total.eq(hvd.size()).all()
sockets = psutil.Process().net_connections("inet")
peers = {socket.raddr.ip.removeprefix("::ffff:") for socket in sockets if socket.raddr}
listens = {socket.laddr.ip.removeprefix("::ffff:") for socket in sockets if socket.status == psutil.CONN_LISTEN}
names = [os.environ.get(f"{kind}_SOCKET_IFNAME", "") for kind in ("NCCL", "GLOO")]
hvd.barrier()
sys.stdout.write(f"names {' '.join(names)} peers {' '.join(sorted(peers))} listens {' '.join(sorted(listens))}\\n")
sys.stdout.flush()
hvd.barrier()
"""


def run(cluster: Cluster, *words: str) -> Finished:
    """Run a job of one worker on host1 and one on host2 to its good end."""
    finished = cluster(*JOB, *words)
    assert finished.returncode == 0, finished.stderr
    return finished


def test_a_decoy_with_the_same_address_on_all_hosts_is_not_chosen(build: BuildCluster) -> None:
    decoys = ("docker0", "virbr0")
    plans = [HostPlan(name, decoys=decoys) for name in ("host1", "host2")]
    finished = run(build(plans, launcher=HostPlan("launcher", decoys=decoys, sshd=None)), *PRINTS)
    assert sorted(finished.stdout.splitlines()) == [
        "[0@host1] eth0 10.77.0.1 10.77.0.1",
        "[1@host2] eth0 10.77.0.2 10.77.0.1",
    ]
    assert "172." not in finished.stderr
    assert (
        "hvdrun: host1: 10.77.0.1 on eth0: all hosts reach each other in the subnet 10.77.0.0/24; "
        "it reaches the rendezvous at 10.77.0.250:"
    ) in finished.stderr


def test_of_two_networks_the_one_that_joins_all_is_used_whatever_its_interfaces_are_called(build: BuildCluster) -> None:
    cluster = build([HostPlan("host1", devices=("enp3s0", "eth1")), HostPlan("host2", devices=("eth0", "bond0"))])
    cluster["host1"].network.ignore(cluster["host2"].network, device="enp3s0")
    finished = run(cluster, *PRINTS)
    assert sorted(finished.stdout.splitlines()) == [
        "[0@host1] eth1 10.78.0.1 10.78.0.1",
        "[1@host2] bond0 10.78.0.2 10.78.0.1",
    ]
    assert "hvdrun: host2: 10.78.0.2 on bond0: all hosts reach each other in the subnet 10.78.0.0/24" in finished.stderr


def test_hosts_may_have_ipv6_only(build: BuildCluster) -> None:
    plans = [HostPlan(name, families=IPV6_ONLY) for name in ("host1", "host2")]
    finished = run(build(plans, launcher=HostPlan("launcher", families=IPV6_ONLY, sshd=None)), *PRINTS)
    assert sorted(finished.stdout.splitlines()) == [
        "[0@host1] eth0 fd77:0:0:1::1 fd77:0:0:1::1",
        "[1@host2] eth0 fd77:0:0:1::2 fd77:0:0:1::1",
    ]
    assert "it reaches the rendezvous at [fd77:0:0:1::fa]:" in finished.stderr


@pytest.mark.parametrize(
    ("wanted", "first", "second"),
    [
        ("fd77:0:0:2::/64", "fd77:0:0:2::1", "fd77:0:0:2::2"),
        pytest.param("ib0,eth1*", "10.78.0.1", "10.78.0.2", marks=pytest.mark.nightly),
    ],
)
def test_torch_uses_no_network_but_the_requested_one(build: BuildCluster, wanted: str, first: str, second: str) -> None:
    cluster = build([HostPlan(name, devices=("eth0", "eth1")) for name in ("host1", "host2")])
    cluster.write("train.py", TRAINS)
    finished = run(cluster, "--network-interfaces", wanted, "python", "train.py")
    said = dict(re.findall(r"^\[(\d)@host\d\] (names .*)$", finished.stdout, re.MULTILINE))
    for rank, own, other in (("0", first, second), ("1", second, first)):
        found = re.fullmatch(r"names (\S*) (\S*) peers (.*) listens(.*)", said[rank])
        assert found is not None
        nccl, gloo, peers, listens = found.groups()
        assert (nccl, gloo) == ("=eth1", "eth1")
        assert {other} <= set(peers.split()) <= {own, other}, said
        assert set(listens.split()) <= {own}, said
    assert f", as --network-interfaces {wanted} allows" in finished.stderr


def test_two_hosts_that_cannot_reach_each_other_are_named(build: BuildCluster) -> None:
    cluster = build(3)
    cluster.lab.part("host2", "host3")
    finished = cluster("-np", "3", "-H", "host1:1,host2:1,host3:1", "true")
    assert finished.returncode == 125
    assert finished.stderr.startswith(
        "hvdrun: the hosts cannot all reach each other: host3 does not reach host2 (tried 10.77.0.2 on eth0"
    )
    assert "; host2 does not reach host3 (tried 10.77.0.3 on eth0" in finished.stderr
    assert finished.stderr.count("\n") == 1
