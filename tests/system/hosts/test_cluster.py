"""What a job might leave on a host is seen: or no test here could fail for it."""

import socket
import sys

import pytest

from tests.system.hosts.cluster import Cluster
from tests.system.launcher import Stream

# Listens, and keeps a file in each of the folders, until it is told to end.
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


@pytest.mark.parametrize("name", ["launcher", "host2"])
def test_what_is_left_on_a_host_is_found_and_told(pair: Cluster, name: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = pair[name].start([sys.executable, "-c", KEEPS], stdin=theirs.fileno())
        theirs.close()
        assert keeper.stdout is not None
        Stream(keeper.stdout).wait_for("^ready$", 20)
        process, *others = sorted(pair.settle(0), key=lambda trace: "process" not in trace)
    assert process.startswith(f"{name}: process {keeper.pid} (")
    kept = (f"{name}: file /dev/shm/kept", f"{name}: file /tmp/kept", f"{name}: tcp listener on port 4321")
    assert sorted(others) == sorted(kept)
    assert keeper.wait(20) == 0
    assert pair.settle() == ()
