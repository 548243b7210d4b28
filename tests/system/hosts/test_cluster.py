"""What a job might leave on a host is seen: or no test here could fail for it."""

import socket
import sys

from tests.lab.host import Host
from tests.system.hosts.cluster import Cluster
from tests.system.launcher import Stream

# Listens, and keeps a file in each of the folders, until it is ordered to end.
KEEPS = """
import pathlib, socket, sys

files = [pathlib.Path("/tmp/kept"), pathlib.Path("/dev/shm/kept")]
for file in files:
    file.touch()
with socket.create_server(("", 4321)):
    print("ready", flush=True)
    sys.stdin.read()
for file in files:
    file.unlink()
"""


def test_leftovers_on_any_host_are_found(pair: Cluster) -> None:
    for host in (pair.lab.launcher, pair["host2"]):
        check_is_found(pair, host)


def check_is_found(cluster: Cluster, host: Host) -> None:
    """A process, its files and its port are found, until it has ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = host.start([sys.executable, "-c", KEEPS], stdin=theirs.fileno())
        theirs.close()
        assert keeper.stdout is not None
        Stream(keeper.stdout).wait_for("^ready$", 60)
        process, *others = sorted(cluster.settle(0), key=lambda trace: "process" not in trace)
    assert process.startswith(f"{host.name}: process {keeper.pid} (")
    kept = ("file /dev/shm/kept", "file /tmp/kept", "tcp listener on port 4321")
    assert sorted(others) == [f"{host.name}: {trace}" for trace in kept]
    assert keeper.wait(60) == 0
    assert cluster.settle() == ()
