"""No secret of a job stands where others can read it: on a command line, in an environment, in a file."""

import re
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, find_guardian

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


def test_only_the_user_can_reach_the_agent_s_socket(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", WAITS)
    running = hvdrun.start("-np", "1", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 20)
    (folder,) = hvdrun.watch.temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    hvdrun.write("go", "")
    assert running.wait(20).returncode == 0
