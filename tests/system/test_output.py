"""The workers' output as hvdrun shows it: every byte, in order, each line marked with its rank."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.system.launcher import LIMIT_SECONDS, Launcher
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

LINES = 50_000  # of 100 bytes: 5 MB from each of four workers

# Numbered lines, so that a lost, doubled or mixed one is seen.
PRINTS = """
import os, sys

rank = os.environ["HOROVOD_RANK"]
count = int(sys.argv[1])
sys.stdout.flush()
with open(1, "wb", closefd=False) as out:
    for number in range(count):
        out.write(f"{rank} {number:08d} ".ljust(99, "x").encode() + b"\\n")
"""
NOISE = "import os, random, sys\nsys.stdout.buffer.write(random.Random(3).randbytes(3_000_000))"


@pytest.mark.parametrize("forks", [True, False], ids=["forked", "executed"])
def test_a_line_is_shown_when_it_is_written(hvdrun: Launcher, *, forks: bool) -> None:
    hvdrun.write("train.py", f"{WAIT_FOR}\nprint('first')\nwait_for('go')")
    running = hvdrun.start("-np", "1", "python", "train.py", forks=forks)
    running.stdout.wait_for(r"^\[0\] first$", 60)  # though the script does not flush, and the output is a pipe
    hvdrun.write("go", "")
    assert running.wait().returncode == 0


@pytest.mark.parametrize(("forks", "count"), rest_nightly([(False, LINES // 5), (True, LINES)]))
def test_megabytes_from_four_workers_lose_nothing(hvdrun: Launcher, *, forks: bool, count: int) -> None:
    hvdrun.write("train.py", PRINTS)
    finished = hvdrun("-np", "4", "python", "train.py", str(count), forks=forks)
    assert finished.returncode == 0
    lines: dict[str, list[str]] = {str(rank): [] for rank in range(4)}
    for line in finished.stdout.splitlines():
        mark, text = line.split("] ", 1)
        lines[mark.removeprefix("[")].append(text)
    for rank, found in lines.items():
        assert found == [f"{rank} {number:08d} ".ljust(99, "x") for number in range(count)]


def test_one_stream_of_bytes_arrives_unchanged(hvdrun: Launcher) -> None:
    hvdrun.write("noise.py", NOISE)
    finished = hvdrun("-np", "1", "--no-prefix", "python", "noise.py")
    expected = subprocess.run([sys.executable, "-c", NOISE], capture_output=True, check=True).stdout.rstrip(b"\n")
    found = os.fsencode(finished.stdout).rstrip(b"\n")
    assert hashlib.sha256(found).hexdigest() == hashlib.sha256(expected).hexdigest()


def test_a_full_disk_is_an_error_though_all_workers_exit_with_0(hvdrun: Launcher) -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            hvdrun.command("-np", "1", "echo", "text"),
            env=hvdrun.environment(),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert (result.returncode, result.stderr.decode().splitlines()) == (
        74,
        [
            "hvdrun: the standard output cannot be written, it is tried again: No space left on device",
            "hvdrun: a part of the standard output is lost: No space left on device",
        ],
    )


def test_the_log_has_what_hvdrun_and_its_agents_say_with_time_level_host_and_job(hvdrun: Launcher) -> None:
    words = ("-np", "2", "--log-level", "debug", "--log-file", "log", "--log-format", "json", "--max-restarts", "1")
    script = """
[ $HOROVOD_RANK = 0 ] && exec sleep 60
[ -e second ] && until grep -q "run again" log; do sleep 0.1; done
touch second; exit 3
"""
    finished = hvdrun(*words, "sh", "-c", script)
    assert finished.returncode == 3
    records = [json.loads(line) for line in (hvdrun.directory / "log").read_text().splitlines()]
    said = [line.removeprefix("hvdrun: ") for line in finished.stderr.splitlines() if line.startswith("hvdrun: ")]
    assert [record["message"] for record in records] == said
    assert {record["host"] for record in records} == {socket.gethostname()}
    assert len({record["job"] for record in records}) == 1
    assert all(datetime.fromisoformat(record["time"]).tzinfo for record in records)
    levels = {record["level"]: record["message"] for record in records}  # the last one of each
    assert "are started again (0 of 1 restarts left)" in levels["warning"]
    assert "rank 1 on localhost (slot 1) failed first" in levels["error"]
    assert {"debug", "info"} < set(levels)


def test_a_traceback_that_all_workers_write_is_shown_once(hvdrun: Launcher) -> None:
    script = """
import os, time, traceback
while not os.path.exists("go"):
    try:
        open("absent")
    except FileNotFoundError:
        traceback.print_exc()
    time.sleep(0.1)
"""
    hvdrun.write("train.py", script)
    running = hvdrun.start("-np", "3", "--output-filename", "out", "python", "train.py")
    running.stderr.wait_for(r"(?m)^\[0-2\] Traceback .*\n(\[0-2\] .*\n)+\[0-2\] FileNotFoundError: .*$", 60)
    hvdrun.write("go", "")
    assert running.wait().returncode == 0
    for rank in range(3):
        assert f"[{rank}] Traceback" in (hvdrun.directory / "out" / f"rank.{rank}" / "stderr").read_text()
