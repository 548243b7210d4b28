"""Jobs in surroundings that are not a developer's: an old Python, narrow limits, a careless parent."""

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.old_python import play_old_python
from tests.system.launcher import LIMIT_SECONDS, Launcher
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

# The end of rank 0 takes a kill.
FAILS = """
import signal, sys, time
import torch
import worker_runtime.torch as hvd

hvd.init()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("sum", int(hvd.allreduce(torch.ones(1), op=hvd.Sum)), flush=True)
if hvd.rank() == 1:
    sys.exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("variant", "forks"),
    rest_nightly([("absent", True), ("absent", False), ("refused", True), ("refused", False)]),
)
def test_jobs_need_no_pidfds_and_no_files_in_memory(
    hvdrun: Launcher, tmp_path: Path, variant: str, *, forks: bool
) -> None:
    hvdrun.write("train.py", FAILS)
    old = play_old_python(tmp_path, variant)
    finished = hvdrun("-v", "-np", "2", "--grace", "1s", "python", "train.py", environment=old, forks=forks)
    assert finished.returncode == 3, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] sum 2", "[1] sum 2"]
    assert (", forked" in finished.stderr, ", executed" in finished.stderr) == (forks, not forks)


# Blocks every signal, does not want to know of its children's ends, ignores hang-ups and Ctrl-C; few files. What a
# shell ignores in the background is not ignored.
CARELESS = """
import os, resource, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.execv(sys.argv[1], sys.argv[1:])
"""
SHOWS = f"""{WAIT_FOR}
import resource
ignored = [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(ignored, signal.pthread_sigmask(signal.SIG_BLOCK, []), soft == hard, flush=True)
wait_for("go" if os.environ["RANK"] == "0" else "nothing")
sys.exit(3)
"""


@pytest.mark.parametrize(("forks", "number", "code"), [(True, None, 3), (False, signal.SIGTERM, 143)])
def test_a_careless_parent_changes_no_job(
    hvdrun: Launcher, number: signal.Signals | None, code: int, *, forks: bool
) -> None:
    hvdrun.write("train.py", SHOWS)
    before = [sys.executable, "-c", CARELESS]
    running = hvdrun.start("-v", "-np", "2", "python", "train.py", forks=forks, before=before)
    running.stderr.wait_for(", forked" if forks else ", executed", LIMIT_SECONDS)
    ignored = [int(signal.SIGPIPE), int(signal.SIGXFSZ)]  # by Python
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] {re.escape(str(ignored))} set\(\) True$", LIMIT_SECONDS)
    for ignored_by_the_parent in (signal.SIGHUP, signal.SIGINT):
        running.send(ignored_by_the_parent)
    if number is None:
        hvdrun.write("go", "")
    else:
        running.send(number)
    assert running.wait().returncode == code
