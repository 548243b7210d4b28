"""The start of a detached job: what its guardian says of itself."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from hvdrun.console.marks import read_local_clock
from hvdrun.jobs import detach
from hvdrun.jobs.log import LogWriter
from hvdrun.jobs.record import JobRecord

def begin(serve, say, leave_terminal, *_):
    folder = Path("state/hvdrun/0123456789abcdef").absolute()
    LogWriter(folder, detach._STREAMS, read_local_clock)
    leave_terminal()
    raise RuntimeError("it is lost")

def fork():
    raise BlockingIOError(11, os.strerror(11))

if sys.argv[1] == "bug":
    detach.guard = begin
else:
    real, made = os.fork, []
    os.fork = lambda: fork() if made else made.append(1) or real()
work = detach.Work(lambda server: 0, lambda *_: None, lambda sentence, level: f"hvdrun: {sentence}\\n".encode())
record = JobRecord("0123456789abcdef", ("true",), 1, is_detached=True)
sys.exit(detach.detach(record, work, {"XDG_STATE_HOME": os.path.abspath("state")}, 0.0))
"""


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("bug", "this is a bug in hvdrun, please report it: RuntimeError: it is lost"),
        ("fork", "there can be no process for a server of this job: Resource temporarily unavailable"),
    ],
)
def test_the_failure_of_a_guardian_is_reported(tmp_path: Path, case: str, sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, case], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (125, f"hvdrun: {sentence}\n")
