"""hvdrun's own standard input, for the one worker that `--stdin` names; nothing for the others."""

import os
from pathlib import Path

import pytest

from tests.system.launcher import Launcher

READS = "import os, sys\ndata = sys.stdin.buffer.read()\nprint(os.environ['HOROVOD_RANK'], len(data), data[:20])\n"
DEBUGGED = "total = 0\nfor number in range(3):\n    total += number\nprint('total', total)\n"
BOTH_WAYS = pytest.mark.parametrize("option", [(), ("--no-prefork",)], ids=["forked", "executed"])


@BOTH_WAYS
def test_only_the_named_worker_reads_a_file(hvdrun: Launcher, option: tuple[str, ...]) -> None:
    hvdrun.write("read.py", READS)
    data = bytes(range(256)) * 4000
    (hvdrun.directory / "input").write_bytes(data)
    with Path(hvdrun.directory, "input").open("rb") as stdin:
        finished = hvdrun("-np", "3", "--stdin", "1", *option, "python", "read.py", stdin=stdin)
    assert (finished.returncode, finished.stderr) == (0, "")
    expected = [f"[{rank}] {rank} 0 b''" for rank in (0, 2)] + [f"[1] 1 {len(data)} {data[:20]!r}"]
    assert sorted(finished.stdout.splitlines()) == sorted(expected)


def test_without_the_option_nobody_reads(hvdrun: Launcher) -> None:
    hvdrun.write("read.py", READS)
    (hvdrun.directory / "input").write_bytes(b"not for workers")
    with Path(hvdrun.directory, "input").open("rb") as stdin:
        finished = hvdrun("-np", "1", "python", "read.py", stdin=stdin)
    assert finished.stdout == "[0] 0 0 b''\n"


def test_a_debugger_takes_its_commands_from_there(hvdrun: Launcher) -> None:
    hvdrun.write("loop.py", DEBUGGED)
    (hvdrun.directory / "commands").write_text("break loop.py:4\ncontinue\np 'seen', total\ncontinue\nquit\n")
    with Path(hvdrun.directory, "commands").open("rb") as stdin:
        finished = hvdrun("-np", "2", "--stdin", "0", "python", "-m", "pdb", "loop.py", stdin=stdin)
    assert "[0] (Pdb) ('seen', 3)" in finished.stdout
    assert "[0] (Pdb) total 3" in finished.stdout


def test_a_job_ends_although_its_input_does_not(hvdrun: Launcher) -> None:
    reader, writer = os.pipe()
    try:
        with os.fdopen(reader, "rb") as stdin:
            hvdrun.write("brief.py", "print('done')")
            finished = hvdrun("-np", "2", "--stdin", "0", "python", "brief.py", stdin=stdin, limit_seconds=20)
    finally:
        os.close(writer)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_rank_that_does_not_exist_cannot_read(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "--stdin", "2", "cat")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == "hvdrun: --stdin 2 names no worker: the ranks are 0 to 1.\n"
