"""Jobs in surroundings that are not a developer's: an old Python, narrow limits, a careless parent."""

from pathlib import Path

import pytest

from tests.old_python import play_old_python
from tests.system.launcher import Launcher
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
