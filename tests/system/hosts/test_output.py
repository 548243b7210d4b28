"""What workers on several hosts write and read arrives whole."""

import hashlib
import tempfile

from tests.system.hosts.cluster import WAYS, Cluster

JOB = ("-np", "2", "-H", "host1:1,host2:1")
LINES = 30_000  # about 3 MB from each host
WRITES = 'yes "$HOROVOD_RANK $(printf %097d 0)" | head -n {}; hostname >&2'


@WAYS
def test_much_output_from_two_hosts_is_complete_and_each_line_has_its_host(pair: Cluster, way: tuple[str, ...]) -> None:
    finished = pair(*JOB, *way, "sh", "-c", WRITES.format(LINES))
    assert finished.returncode == 0
    assert sorted(finished.stderr.splitlines()) == ["[0@host1] host1", "[1@host2] host2"]
    expected = [f"[{rank}@host{rank + 1}] {rank} {'0' * 97}" for rank in range(2)]
    assert sorted(finished.stdout.splitlines()) == [line for line in expected for _ in range(LINES)]


@WAYS
def test_a_worker_on_a_remote_host_reads_standard_input(pair: Cluster, way: tuple[str, ...]) -> None:
    data = b"".join(b"line %d\n" % number for number in range(100_000))
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        finished = pair(*JOB, *way, "--stdin", "0", "sha256sum", stdin=file)
    assert finished.returncode == 0, finished.stderr
    assert f"[0@host1] {hashlib.sha256(data).hexdigest()}  -" in finished.stdout.splitlines()
