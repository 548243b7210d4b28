"""What stands where others on a host can read it: no secret of the job, and nothing of the user's environment."""

import re
from pathlib import Path

from tests.system.hosts.cluster import Cluster
from tests.waiting import LIMIT_SECONDS

FORWARDED = "correct horse battery staple"
ASSIGNED = "tr0ub4dor"
# Keys and certificates, as PEM or as the numbers inside.
SECRET = re.compile(rb"PRIVATE KEY|BEGIN CERTIFICATE|MIG[A-Za-z0-9+/]{20}|MIIB")
SHELL_WAITS = "echo alive; while [ ! -e go ]; do sleep 0.05; done"


def test_no_command_line_and_no_word_of_ours_has_a_secret_or_the_environment(pair: Cluster) -> None:
    job = ("-np", "3", "-H", "localhost:1,host1:1,host2:1", "-v", "-x", "MY_TOKEN", "-x", f"API_KEY={ASSIGNED}")
    running = pair.start(*job, "sh", "-c", SHELL_WAITS, environment={"MY_TOKEN": FORWARDED})
    for mark in ("0@localhost", "1@host1", "2@host2"):
        running.stdout.wait_for(rf"^\[{mark}\] alive$", LIMIT_SECONDS)

    lines = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
    agents = [path for path, line in lines.items() if line.endswith(b"-m\0hvdrun.agent\0")]
    assert len(agents) >= 3
    own = Path(f"/proc/{running.pid}/cmdline")
    assert ASSIGNED.encode() in lines[own]  # the user has put it there
    for path, line in lines.items():
        assert FORWARDED.encode() not in line, path
        assert ASSIGNED.encode() not in line or path == own, path
        assert SECRET.search(line) is None, path
    pair.write("go", "")
    finished = running.wait()
    assert finished.returncode == 0
    said = finished.stdout + finished.stderr
    assert FORWARDED not in said
    assert ASSIGNED not in said
    assert SECRET.search(said.encode()) is None
