"""The workers' output as hvdrun shows it: every byte, in order, each line marked with its rank."""

import re
import subprocess
import sys

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import wait_until

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


def count_workers(hvdrun: Launcher) -> int:
    return sum(process.command.startswith("python train.py") for process in hvdrun.processes("train.py"))


def test_each_line_is_marked_with_its_rank(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "3", "sh", "-c", "echo one; echo two")
    assert sorted(finished.stdout.splitlines()) == [f"[{rank}] {line}" for rank in range(3) for line in ("one", "two")]


def test_on_several_hosts_each_line_is_marked_with_its_host(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "-H", "localhost:1,127.0.0.1:1", "sh", "-c", "echo one; echo two >&2")
    assert finished.returncode == 0
    assert sorted(finished.stdout.splitlines()) == ["[0@localhost] one", "[1@127.0.0.1] one"]
    assert sorted(finished.stderr.splitlines()) == ["[0@localhost] two", "[1@127.0.0.1] two"]


def test_both_streams_stay_apart(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "sh", "-c", "echo out; echo err >&2")
    assert (finished.stdout, finished.stderr) == ("[0] out\n", "[0] err\n")


def test_a_last_line_without_its_end_is_shown(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "printf", "one\\ntwo")
    assert finished.stdout == "[0] one\n[0] two\n"


def test_the_last_words_of_a_worker_that_is_killed_are_shown(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "sh", "-c", "printf 'one\\nno end'; kill -9 $$")
    assert finished.returncode == 137
    assert finished.stdout == "[0] one\n[0] no end\n"
    assert "  | no end\n" in finished.stderr


def test_bytes_that_are_no_text_come_through(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", f"import os\nos.write(1, {bytes(range(256))!r} + b'\\n')")
    finished = hvdrun("-np", "1", "python", "train.py")
    shown = finished.stdout.encode(errors="surrogateescape")
    assert shown.replace(b"[0] ", b"").rstrip(b"\n") == bytes(range(256)).rstrip(b"\n")


def test_a_progress_bar_s_carriage_returns_come_through(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "printf", "10%%\\r20%%\\r\\n")
    assert finished.stdout == "[0] 10%\r[0] 20%\r\n"


def test_a_line_is_shown_when_it_is_written(hvdrun: Launcher) -> None:
    hvdrun.write(
        "train.py", "import pathlib, time\nprint('first')\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    )
    running = hvdrun.start("-np", "1", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] first$", 20)  # though nobody flushes, and the output is a pipe
    hvdrun.write("go", "")
    assert running.wait(10).returncode == 0


@pytest.mark.parametrize("option", [(), ("--no-prefork",)], ids=["forked", "executed"])
def test_twenty_megabytes_from_four_workers_lose_nothing(hvdrun: Launcher, option: tuple[str, ...]) -> None:
    hvdrun.write("train.py", PRINTS)
    finished = hvdrun("-np", "4", *option, "python", "train.py", str(LINES))
    assert finished.returncode == 0
    lines: dict[str, list[str]] = {str(rank): [] for rank in range(4)}
    for line in finished.stdout.splitlines():
        mark, text = line.split("] ", 1)
        lines[mark.removeprefix("[")].append(text)
    for rank, found in lines.items():
        assert found == [f"{rank} {number:08d} ".ljust(99, "x") for number in range(LINES)]


def test_a_reader_who_is_slow_loses_nothing_and_needs_no_memory(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", PRINTS)
    with subprocess.Popen(
        [sys.executable, "-m", "hvdrun", "-np", "4", "python", "train.py", str(LINES)],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        wait_until(lambda: count_workers(hvdrun) == 4)  # all of them wait for the reader
        size = 1 + len(process.stdout.read())
        assert process.wait(20) == 0
    assert size == 4 * LINES * (100 + len("[0] "))


def test_the_page_shows_the_last_lines_of_who_failed_only(hvdrun: Launcher) -> None:
    script = 'i=0; while [ $i -lt 30 ]; do echo "$HOROVOD_RANK line $i"; i=$((i+1)); done; exit $HOROVOD_RANK'
    finished = hvdrun("-np", "2", "sh", "-c", script)
    assert finished.returncode == 1
    quoted = re.findall(r"^  \| (.*)$", finished.stderr, re.MULTILINE)
    assert quoted == [f"1 line {number}" for number in range(20, 30)]
