"""What workers on several hosts write and read: all of it, on time, and told apart."""

import hashlib
import tempfile

from tests.system.hosts.cluster import Cluster

MEGABYTES = 10  # from each of two hosts
WRITES = """
import os, sys
line = b"%s " % os.environ["HOROVOD_RANK"].encode() + b"x" * 97 + b"\\n"
for _ in range({count}):
    os.write(1, line * 100)
"""


def test_a_plain_program_s_output_is_marked_with_rank_and_host(pair: Cluster) -> None:
    finished = pair("-np", "2", "-H", "host1:1,host2:1", "sh", "-c", "hostname; hostname >&2")
    marked = ["[0@host1] host1", "[1@host2] host2"]
    assert sorted(finished.stdout.splitlines()) == marked
    assert sorted(finished.stderr.splitlines()) == marked


def test_much_output_from_two_hosts_is_complete(pair: Cluster) -> None:
    count = MEGABYTES * 100
    pair.write("write.py", WRITES.format(count=count))
    finished = pair("-np", "2", "-H", "host1:1,host2:1", "--no-prefork", "python", "write.py")
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    for rank in range(2):
        line = f"[{rank}@host{rank + 1}] {rank} {'x' * 97}"
        assert lines.count(line) == 100 * count
    assert len(lines) == 200 * count


def test_a_worker_on_a_remote_host_reads_standard_input(pair: Cluster) -> None:
    data = b"".join(b"line %d\n" % number for number in range(100_000))
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        finished = pair("-np", "2", "-H", "host1:1,host2:1", "--stdin", "0", "sha256sum", stdin=file)
    assert finished.returncode == 0, finished.stderr
    assert f"[0@host1] {hashlib.sha256(data).hexdigest()}  -" in finished.stdout.splitlines()
