"""Scripts that write checkpoints into HVD_SNAPSHOT_DIR find them in the next round, and nothing is left of them."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.leftovers import SHARED_MEMORY
from tests.system.roles import find_agent, find_watchdog, kill
from tests.waiting import wait_until

SHORT = ("--lease", "2s", "--elastic-timeout", "3s")
# Counts the rounds in a file, and lives until the test kills it.
COUNT = """
import os, pathlib, time
folder = pathlib.Path(os.environ["HVD_SNAPSHOT_DIR"])
known = folder / os.environ["RANK"]
number = int(known.read_text()) + 1 if known.exists() else 0
known.write_text(str(number))
os.write(1, f"worker {os.getpid()} counts {number} in {folder}\\n".encode())
time.sleep(0 if number == 2 else 600)
"""


def await_workers(running: Running, number: int) -> tuple[list[int], Path]:
    """The pids of the two workers that count so many rounds, and their folder."""
    found = [running.stdout.wait_for(rf"^\[{rank}\] worker (\d+) counts {number} in (\S+)$", 60) for rank in range(2)]
    (folder,) = {each[2] for each in found}
    return [int(each[1]) for each in found], Path(folder)


def kill_at_once(pids: list[int | None]) -> None:
    """Kill these processes, none of which has the time to do anything about the others."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            kill(pid, number)


def test_each_round_finds_what_the_last_one_has_written(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", COUNT)
    running = hvdrun.start("-np", "2", "--max-restarts", "2", "python", "train.py")
    for number in range(2):
        pids, folder = await_workers(running, number)
        assert folder.parent.parent == SHARED_MEMORY
        assert folder.stat().st_mode & 0o777 == 0o700
        kill(pids[number])
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert "lost" not in finished.stderr
    assert not folder.parent.exists()


@pytest.mark.parametrize("victims", ["agent", "hvdrun", "agent watchdog worker"])
def test_no_file_is_left_where_parts_of_a_job_are_killed(hvdrun: Launcher, victims: str) -> None:
    hvdrun.write("train.py", COUNT)
    running = hvdrun.start("-np", "2", "--max-restarts", "2", *SHORT, "python", "train.py")
    pids, folder = await_workers(running, 0)
    parts: dict[str, list[int | None]] = {
        "agent": [find_agent(hvdrun)],
        "watchdog": [find_watchdog(hvdrun)],
        "hvdrun": [running.pid],
        "worker": [*pids],
    }
    kill_at_once([pid for victim in victims.split() for pid in parts[victim]])
    running.wait()
    wait_until(lambda: not hvdrun.processes())
    assert not folder.parent.exists()


def test_the_next_job_removes_what_is_left_where_all_were_killed(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", COUNT)
    running = hvdrun.start("-np", "2", "--max-restarts", "2", "python", "train.py")
    pids, folder = await_workers(running, 0)
    kill_at_once([running.pid, find_agent(hvdrun), find_watchdog(hvdrun), *pids])
    running.wait()
    wait_until(lambda: not hvdrun.processes())
    assert folder.exists()
    assert hvdrun("-np", "1", "true").returncode == 0
    assert not folder.parent.exists()


def test_a_job_without_restarts_has_no_such_folder(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", "import os; print('HVD_SNAPSHOT_DIR' in os.environ)")
    around = {"HVD_SNAPSHOT_DIR": os.fspath(hvdrun.directory)}
    finished = hvdrun("-np", "1", "python", "train.py", environment=around)
    assert re.findall("True|False", finished.stdout) == ["False"]


@pytest.mark.parametrize("words", [(), ("--max-restarts", "1")])
def test_the_folder_that_the_user_has_chosen_is_that_of_the_script(hvdrun: Launcher, words: tuple[str, ...]) -> None:
    hvdrun.write("train.py", "import os; print('in', os.environ['HVD_SNAPSHOT_DIR'])")
    finished = hvdrun("-np", "1", *words, "-x", "HVD_SNAPSHOT_DIR=/mine", "python", "train.py")
    assert re.findall("in (.*)", finished.stdout) == ["/mine"]
