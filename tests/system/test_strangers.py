"""Scripts for other launchers under hvdrun, hvdrun's scripts under other launchers, and names that are the user's."""

import subprocess
import sys

import pytest

from tests.system.launcher import Launcher
from tests.system.tables import rest_nightly

PLAIN_TORCH = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(dist.get_rank(), dist.get_world_size(), int(total))
dist.destroy_process_group()
"""
OURS = """
import sys
import worker_runtime.torch as hvd

hvd.init()
numbers = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size(), hvd.allgather_object(hvd.rank()))
sys.stdout.write(" ".join(map(str, numbers)) + "\\n")  # at once: torchrun lets its workers write as they like
"""
HOSTILE = """
import protos
assert protos.OWNER == "user"
import worker_runtime.torch as hvd

hvd.init()
hvd.barrier()
import rendezvous, tests
assert rendezvous.OWNER == tests.OWNER == "user"
hvd.shutdown()
hvd.init()
print(hvd.allgather_object(hvd.rank()))
"""


def test_a_script_written_for_torchrun_runs_unchanged(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", PLAIN_TORCH)
    finished = hvdrun("-np", "2", "-H", "localhost:1,127.0.0.1:1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(line.partition("] ")[2] for line in finished.stdout.splitlines()) == ["0 2 3", "1 2 3"]


@pytest.mark.nightly
def test_our_script_runs_under_torchrun(hvdrun: Launcher) -> None:
    script = hvdrun.write("train.py", OURS)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
        env={**hvdrun.environment(), "TMPDIR": str(hvdrun.directory)},  # torchrun leaves folders of its own there
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert sorted(run.stdout.splitlines()) == ["0 2 0 1 [0, 1]", "1 2 1 1 [0, 1]"]


@pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])
def test_folders_of_our_names_beside_the_script_are_the_user_s(hvdrun: Launcher, *, forks: bool) -> None:
    for name in ("protos", "rendezvous", "tests"):
        (hvdrun.directory / name).mkdir()
        (hvdrun.directory / name / "__init__.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    (hvdrun.directory / "protos" / "rendezvous_pb2.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    hvdrun.write("train.py", HOSTILE)
    environment = {"PYTHONPATH": str(hvdrun.directory)}
    finished = hvdrun("-np", "2", "python", "train.py", environment=environment, forks=forks)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] [0, 1]", "[1] [0, 1]"]
