"""No secret of a job stands where others can read it: on a command line, in an environment, in a file, in outputs."""

import base64
import re
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, find_sequencers, find_watchdog
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

# Keys and certificates, as PEM or as the numbers inside.
SECRET = re.compile(rb"PRIVATE KEY|BEGIN CERTIFICATE|MIG[A-Za-z0-9+/]{20}|MIIB")

PASSWORD = "hunter2"  # noqa: S105 - a test's own

# Rank 0 gives the test the generation's key.
JOINS = f"""{WAIT_FOR}
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
membership = client.join(0)
if membership.assignment.rank == 0:
    client.await_sequencer(membership.generation)
    pathlib.Path("key").write_bytes(membership.key)
print(membership, "alive", flush=True)
wait_for("go")
client.close()
"""


@pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])
def test_no_secret_is_to_be_seen_while_a_job_runs(hvdrun: Launcher, *, forks: bool) -> None:
    hvdrun.write("train.py", JOINS)
    options = ("-np", "2", "-x", f"PASSWORD={PASSWORD}", "--log-level", "debug", "--log-file", "log")
    running = hvdrun.start(*options, "python", "train.py", forks=forks)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] .* alive$", 60)
    key = (hvdrun.directory / "key").read_bytes()
    assert len(key) == 32
    forms = (key, key.hex().encode(), repr(key).encode(), base64.b64encode(key))

    processes = hvdrun.processes()
    known = {running.pid, find_agent(hvdrun), find_watchdog(hvdrun), *find_sequencers(hvdrun)}
    assert known < {process.pid for process in processes}
    assert len(processes) >= 6
    texts = [
        Path(f"/proc/{process.pid}/{part}").read_bytes() for process in processes for part in ("cmdline", "environ")
    ]
    assert all(texts)
    texts += [path.read_bytes() for path in hvdrun.watch.temporary.rglob("*") if path.is_file()]

    hvdrun.write("go", "")
    finished = running.wait()
    assert finished.returncode == 0
    texts += [finished.stdout.encode(), finished.stderr.encode(), (hvdrun.directory / "log").read_bytes()]
    assert all(PASSWORD not in text.decode(errors="replace") for text in texts[-3:])
    assert [text for text in texts if SECRET.search(text) or any(form in text for form in forms)] == []


def test_only_the_user_can_reach_the_agent_s_socket(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "sh", "-c", "stat -c %a $TMPDIR/hvdrun-*")
    assert finished.stdout == "[0] 700\n"
