"""Which of the hosts' networks a job uses: the one that was proven, for the rendezvous, torch's store and gloo."""

import re

import pytest

from tests.lab.host import Host
from tests.lab.plan import Family, HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Finished

# Each rank says what it was told, and to whom it is connected when gloo has connected all.
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
# As torch's own documentation has it: nothing of hvdrun is imported.
PLAIN = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(100_000)
dist.all_reduce(total)
assert total.eq(dist.get_world_size()).all()
print("master", os.environ["MASTER_ADDR"], flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def name_plans(*devices: tuple[str, ...], **settings: object) -> list[HostPlan]:
    """Hosts host1, host2 and so on, with these interfaces."""
    return [HostPlan(f"host{n}", devices=names, **settings) for n, names in enumerate(devices, 1)]  # type: ignore[arg-type]  # what a test says


def train(cluster: Cluster, *options: str, script: str = TRAINS) -> Finished:
    """Run a job of two workers on host1 and one on host2 to its good end."""
    cluster.write("train.py", script)
    finished = cluster("-v", "-np", "3", "-H", "host1:2,host2:1", *options, "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    return finished


def check_use(finished: Finished, first: str, second: str, names: tuple[str, str] = ("eth0", "eth0")) -> None:
    """All ranks are connected to these addresses, and to no others; and know their host's interface."""
    said = dict(re.findall(r"^\[(\d)@host\d\] (names .*)$", finished.stdout, re.MULTILINE))
    ends = [(names[0], first, second), (names[0], first, second), (names[1], second, first)]
    for rank, (name, own, other) in enumerate(ends):
        found = re.fullmatch(r"names (\S*) (\S*) peers (.*) listens(.*)", said[str(rank)])
        assert found is not None
        nccl, gloo, peers, listens = found.groups()
        assert (nccl, gloo) == (f"={name}", name)
        assert {other} <= set(peers.split()) <= {own, other}, said
        assert set(listens.split()) <= {own}, said


def refuse_on(host: Host, device: str, other: Host) -> None:
    """Lose what comes from another host on this interface."""
    rules = (
        "add table inet divided\n"
        "add chain inet divided input { type filter hook input priority 0; policy accept; }\n"
        f"add rule inet divided input iifname {device} ip saddr {other.network.address()} drop\n"
        f"add rule inet divided input iifname {device} ip6 saddr {other.network.address(Family.IPV6)} drop\n"
    )
    done = host.run(["nft", "-f", "-"], text=rules)
    assert done.returncode == 0, done.stderr


def has_connection_to(host: Host, address: str) -> bool:
    """The host has a TCP connection to this address, of whatever process."""
    return re.search(rf"{re.escape(address)}\]?:", host.run(["ss", "-tnH"]).stdout) is not None


def test_a_decoy_with_the_same_address_on_all_hosts_is_not_chosen(build: BuildCluster) -> None:
    decoys = ("docker0", "virbr0")
    cluster = build(
        name_plans(("eth0",), ("eth0",), decoys=decoys), launcher=HostPlan("launcher", decoys=decoys, sshd=None)
    )
    finished = train(cluster)
    check_use(finished, "10.77.0.1", "10.77.0.2")
    assert "172." not in finished.stderr
    assert (
        "hvdrun: host1: 10.77.0.1 on eth0: all hosts reach each other in the subnet 10.77.0.0/24; "
        "it reaches the rendezvous at 10.77.0.250:"
    ) in finished.stderr


def test_of_two_networks_the_one_is_used_that_joins_all(build: BuildCluster) -> None:
    cluster = build(name_plans(("eth0", "eth1"), ("eth0", "eth1")))
    refuse_on(cluster["host1"], "eth0", cluster["host2"])
    finished = train(cluster)
    check_use(finished, "10.78.0.1", "10.78.0.2", ("eth1", "eth1"))
    assert "hvdrun: host2: 10.78.0.2 on eth1: all hosts reach each other in the subnet 10.78.0.0/24" in finished.stderr


def test_interfaces_may_be_called_differently_on_each_host(build: BuildCluster) -> None:
    cluster = build(name_plans(("enp3s0",), ("bond0",)))
    check_use(train(cluster), "10.77.0.1", "10.77.0.2", ("enp3s0", "bond0"))


@pytest.fixture
def ipv6(build: BuildCluster) -> Cluster:
    """Hosts that have no IPv4 but for loopback, the launcher too."""
    only = (Family.IPV6,)
    return build(
        name_plans(("eth0",), ("eth0",), families=only), launcher=HostPlan("launcher", families=only, sshd=None)
    )


def test_hosts_may_have_ipv6_only(ipv6: Cluster) -> None:
    finished = train(ipv6)
    check_use(finished, "fd77:0:0:1::1", "fd77:0:0:1::2")
    assert "it reaches the rendezvous at [fd77:0:0:1::fa]:" in finished.stderr


def test_a_plain_script_of_torch_runs_over_ipv6(ipv6: Cluster) -> None:
    finished = train(ipv6, script=PLAIN)
    assert sorted(finished.stdout.splitlines()) == [
        f"[{rank}@{host}] master fd77:0:0:1::1" for rank, host in enumerate(("host1", "host1", "host2"))
    ]


@pytest.mark.parametrize("wanted", ["eth1", "10.78.0.0/16", "eth1*", "ib0,eth1", "fd77:0:0:2::/64"])
def test_a_network_that_is_asked_for_is_used(build: BuildCluster, wanted: str) -> None:
    cluster = build(name_plans(("eth0", "eth1"), ("eth0", "eth1")))
    finished = train(cluster, "--network-interfaces", wanted)
    ends = ("fd77:0:0:2::1", "fd77:0:0:2::2") if ":" in wanted else ("10.78.0.1", "10.78.0.2")
    check_use(finished, *ends, ("eth1", "eth1"))
    assert f", as --network-interfaces {wanted} allows" in finished.stderr


def test_a_network_that_no_host_has_is_refused(pair: Cluster) -> None:
    finished = pair("-np", "2", "-H", "host1:1,host2:1", "--network-interfaces", "ib*", "true")
    assert finished.returncode == 125
    assert finished.stderr.startswith(
        "hvdrun: --network-interfaces ib* leaves no address on host1 (it has 10.77.0.1 on eth0"
    )
    assert finished.stderr.count("\n") == 1


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


def test_gloo_is_connected_over_the_chosen_interface_alone(build: BuildCluster) -> None:
    """As the kernel of the host has it, whatever the workers may say."""
    cluster = build(name_plans(("eth0", "eth1"), ("eth0", "eth1")))
    cluster.write("train.py", TRAINS + "import time\ntime.sleep(600)\n")
    running = cluster.start("-np", "2", "-H", "host1:1,host2:1", "--network-interfaces", "eth1", "python", "train.py")
    running.stdout.wait_for(r"^\[1@host2\] names", 60)
    assert has_connection_to(cluster["host1"], "10.78.0.2")
    assert not has_connection_to(cluster["host1"], "10.77.0.2")
    running.close()
