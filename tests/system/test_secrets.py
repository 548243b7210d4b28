"""No secret of a job stands where others can read it: on a command line, in an environment, in a file."""

import base64
import re
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, find_guardian, find_sequencers

# Keys and certificates, as PEM or as the numbers inside.
SECRET = re.compile(rb"PRIVATE KEY|BEGIN CERTIFICATE|MIG[A-Za-z0-9+/]{20}|MIIB")

WAITS = """
import os, pathlib, time

os.write(1, b"alive\\n")
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("option", ["--verbose", "--no-prefork"])
def test_no_secret_is_to_be_seen_while_a_job_runs(hvdrun: Launcher, option: str) -> None:
    hvdrun.write("train.py", WAITS)
    running = hvdrun.start("-np", "2", option, "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] alive$", 20)

    processes = hvdrun.processes()
    assert {running.pid, find_agent(hvdrun), find_guardian(hvdrun)} < {process.pid for process in processes}
    assert len(processes) >= 5
    for process in processes:
        for part in ("cmdline", "environ"):
            text = Path(f"/proc/{process.pid}/{part}").read_bytes()
            assert text
            assert SECRET.search(text) is None, (process, part)
    files = [path for path in hvdrun.watch.temporary.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.search(path.read_bytes())] == []

    hvdrun.write("go", "")
    finished = running.wait(20)
    assert finished.returncode == 0
    assert SECRET.search((finished.stdout + finished.stderr).encode()) is None


JOINS = """
import os, pathlib, time
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
membership = client.join(0)
if membership.assignment.rank == 0:
    client.await_sequencer(membership.generation)
    pathlib.Path("key").write_bytes(membership.key)
print(membership, "alive", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
client.close()
"""


@pytest.mark.parametrize("option", ["--verbose", "--no-prefork"])
def test_a_generation_s_key_is_not_to_be_seen(hvdrun: Launcher, option: str) -> None:
    hvdrun.write("train.py", JOINS)
    running = hvdrun.start("-np", "2", option, "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] .* alive$", 20)
    assert len(find_sequencers(hvdrun)) == 1
    key = (hvdrun.directory / "key").read_bytes()
    assert len(key) == 32
    forms = (key, key.hex().encode(), repr(key).encode(), base64.b64encode(key))
    seen = [
        Path(f"/proc/{process.pid}/{part}").read_bytes()
        for process in hvdrun.processes()
        for part in ("cmdline", "environ")
    ]
    seen += [path.read_bytes() for path in hvdrun.watch.temporary.rglob("*") if path.is_file()]
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert finished.returncode == 0
    seen += [finished.stdout.encode(), finished.stderr.encode()]
    assert [text for text in seen if any(form in text for form in forms)] == []


def test_only_the_user_can_reach_the_agent_s_socket(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", WAITS)
    running = hvdrun.start("-np", "1", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 20)
    (folder,) = hvdrun.watch.temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    hvdrun.write("go", "")
    assert running.wait(20).returncode == 0
