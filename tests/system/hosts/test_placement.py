"""Ranks on several hosts, as documented: host by host in the order given, each host's slots together."""

import pytest

from tests.system.hosts.cluster import BuildCluster, Cluster

NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
SHOW = "echo " + " ".join(f"$HOROVOD_{name}" for name in (*NUMBERS, "HOSTNAME")) + " $(hostname)"


def show(cluster: Cluster, *options: str) -> list[str]:
    """What the workers of a job say of their numbers and where they are."""
    finished = cluster(*options, "sh", "-c", SHOW)
    assert (finished.returncode, finished.stderr) == (0, "")
    return sorted(finished.stdout.splitlines())


def test_two_hosts_with_as_many_slots(pair: Cluster) -> None:
    assert show(pair, "-np", "4", "-H", "host1:2,host2:2") == [
        "[0@host1] 0 4 0 2 0 2 host1 host1",
        "[1@host1] 1 4 1 2 0 2 host1 host1",
        "[2@host2] 2 4 0 2 1 2 host2 host2",
        "[3@host2] 3 4 1 2 1 2 host2 host2",
    ]


def test_two_hosts_with_unequal_slots(pair: Cluster) -> None:
    assert show(pair, "-np", "4", "-H", "host1:3,host2:1") == [
        "[0@host1] 0 4 0 3 0 2 host1 host1",
        "[1@host1] 1 4 1 3 0 1 host1 host1",
        "[2@host1] 2 4 2 3 0 1 host1 host1",
        "[3@host2] 3 4 0 1 1 2 host2 host2",
    ]


def test_four_hosts_in_the_order_given(build: BuildCluster) -> None:
    assert show(build(4), "-np", "5", "-H", "host3:1,host1:2,host4:1,host2:1") == [
        "[0@host3] 0 5 0 1 0 4 host3 host3",
        "[1@host1] 1 5 0 2 1 4 host1 host1",
        "[2@host1] 2 5 1 2 0 1 host1 host1",
        "[3@host4] 3 5 0 1 2 4 host4 host4",
        "[4@host2] 4 5 0 1 3 4 host2 host2",
    ]


def test_mapped_by_node_the_ranks_go_round(pair: Cluster) -> None:
    assert show(pair, "-np", "3", "-map-by", "node", "-H", "host1:2,host2:2") == [
        "[0@host1] 0 3 0 2 0 2 host1 host1",
        "[1@host1] 1 3 1 2 0 1 host1 host1",
        "[2@host2] 2 3 0 1 1 2 host2 host2",
    ]


def test_a_host_that_is_not_needed_is_left_alone(pair: Cluster) -> None:
    pair["host2"].network.cut()
    assert show(pair, "-np", "1", "-H", "host1:1,host2:1") == ["[0@host1] 0 1 0 1 0 1 host1 host1"]


@pytest.mark.parametrize("hosts", ["localhost:1,host1:1", "host1:1,localhost:1", "launcher:1,host1:1"])
def test_this_machine_is_a_host_like_the_others(pair: Cluster, hosts: str) -> None:
    first, second = (pair_of.partition(":")[0] for pair_of in hosts.split(","))
    where = {"localhost": "launcher", "launcher": "launcher", "host1": "host1"}
    assert show(pair, "-np", "2", "-H", hosts) == [
        f"[0@{first}] 0 2 0 1 0 2 {first} {where[first]}",
        f"[1@{second}] 1 2 0 1 1 2 {second} {where[second]}",
    ]


def test_a_hostfile_may_use_all_forms(build: BuildCluster) -> None:
    cluster = build(4)
    lines = ("# the cluster", "host1 slots=2", "", "host2:1  # the small one", "host3", "  root@host4 slots=1")
    cluster.write("hosts.txt", "\n".join(lines))
    assert show(cluster, "-np", "5", "--hostfile", "hosts.txt") == [
        "[0@host1] 0 5 0 2 0 4 host1 host1",
        "[1@host1] 1 5 1 2 0 1 host1 host1",
        "[2@host2] 2 5 0 1 1 4 host2 host2",
        "[3@host3] 3 5 0 1 2 4 host3 host3",
        "[4@host4] 4 5 0 1 3 4 host4 host4",
    ]


@pytest.mark.parametrize("host", ["10.77.0.2", "root@host2", "[fd77:0:0:1::2]"])
def test_a_host_may_be_an_address_or_have_a_user(pair: Cluster, host: str) -> None:
    name = host.removeprefix("root@").strip("[]")
    assert show(pair, "-np", "2", "-H", f"host1:1,{host}:1") == [
        "[0@host1] 0 2 0 1 0 2 host1 host1",
        f"[1@{name}] 1 2 0 1 1 2 {name} host2",
    ]
