"""Ranks on several hosts, as documented: host by host in the order given, each host's slots together."""

from tests.system.hosts.cluster import BuildCluster, Cluster

NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
SHOW = "echo " + " ".join(f"$HOROVOD_{name}" for name in (*NUMBERS, "HOSTNAME")) + " $(hostname)"


def show(cluster: Cluster, *options: str) -> list[str]:
    """What the workers of a job say of their numbers and where they are."""
    finished = cluster(*options, "sh", "-c", SHOW)
    assert (finished.returncode, finished.stderr) == (0, "")
    return sorted(finished.stdout.splitlines())


def test_a_hostfile_gives_the_hosts_in_every_form_and_their_order(build: BuildCluster) -> None:
    cluster = build(4)
    lines = ("# the cluster", "host3 slots=2", "", "localhost:1  # this machine", "10.77.0.2", "  root@host4 slots=1")
    cluster.write("hosts.txt", "\n".join(lines))
    assert show(cluster, "-np", "5", "--hostfile", "hosts.txt") == [
        "[0@host3] 0 5 0 2 0 4 host3 host3",
        "[1@host3] 1 5 1 2 0 1 host3 host3",
        "[2@localhost] 2 5 0 1 1 4 localhost launcher",
        "[3@10.77.0.2] 3 5 0 1 2 4 10.77.0.2 host2",
        "[4@host4] 4 5 0 1 3 4 host4 host4",
    ]
