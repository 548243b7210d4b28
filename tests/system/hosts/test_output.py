"""What workers on several hosts write and read arrives whole."""

import hashlib
import shlex
import tempfile

import pytest

from tests.system.hosts.cluster import WAYS, Cluster
from tests.system.hosts.roles import find_agents
from tests.waiting import LIMIT_SECONDS, wait_until

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


@pytest.mark.nightly
def test_the_output_of_a_host_that_the_job_leaves_is_complete_though_its_reader_is_slow(pair: Cluster) -> None:
    last_words = 'trap "" TERM; seq -f "%0100.0f" 100000; exit 0'  # 10 MB
    job = (
        "hvdrun", "--no-prefork", "-np", "1", "--min-np", "1", "--host-discovery-script", "cat hosts", "--grace", "600",
        "--lease", "2s", "sh", "-c", f"trap '{last_words}' TERM; echo ready; while [ ! -e go ]; do sleep 0.05; done",
    )  # fmt: skip
    reader = "while data := os.read(0, 65536): time.sleep(0.02); os.write(1, data)"
    pair.name_hosts("host1:1", "host2:1")
    pipeline = f"{shlex.join(job)} | python3 -c 'import os, time\n{reader}'"
    running = pair.start_on(pair.lab.launcher, ["sh", "-c", pipeline])
    running.stdout.wait_for(r"@host2\] ready", LIMIT_SECONDS)
    pair.name_hosts("host1:1")
    wait_until(lambda: not find_agents(pair["host2"]))
    pair.write("go", "")
    lines = running.wait().stdout.splitlines()
    assert [line for line in lines if " 0" in line] == [f"[1@host2] {number:0100}" for number in range(1, 100_001)]
