"""Scripts for other launchers under hvdrun, hvdrun's scripts under other launchers, and names that are the user's."""

import subprocess
import sys

import pytest

from tests.system.launcher import Launcher

PLAIN_TORCH = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(dist.get_rank(), dist.get_world_size(), int(total))
dist.destroy_process_group()
"""
BOTH = """
import os
import torch
import torch.distributed as dist
import worker_runtime.torch as hvd

hvd.init()
dist.init_process_group("gloo")
assert dist.get_rank() == hvd.rank() == int(os.environ["RANK"]) and int(os.environ["LOCAL_RANK"]) == hvd.local_rank()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
dist.all_reduce(total)
print(int(total))
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
LEAVES = """
import sys
import worker_runtime.torch as hvd

hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    sys.exit(0)
hvd.barrier()
"""


@pytest.mark.parametrize("hosts", ["localhost:2", "localhost:1,127.0.0.1:1"])
def test_a_script_written_for_torchrun_runs_unchanged(hvdrun: Launcher, hosts: str) -> None:
    hvdrun.write("train.py", PLAIN_TORCH)
    finished = hvdrun("-np", "2", "-H", hosts, "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(line.partition("] ")[2] for line in finished.stdout.splitlines()) == ["0 2 3", "1 2 3"]


def test_torch_s_own_group_and_ours_live_side_by_side(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", BOTH)
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] 4", "[1] 4"]


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


@pytest.mark.parametrize("option", [(), ("--no-prefork",)], ids=["forked", "executed"])
def test_folders_of_our_names_beside_the_script_are_the_user_s(hvdrun: Launcher, option: tuple[str, ...]) -> None:
    for name in ("protos", "rendezvous", "tests"):
        (hvdrun.directory / name).mkdir()
        (hvdrun.directory / name / "__init__.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    (hvdrun.directory / "protos" / "rendezvous_pb2.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    hvdrun.write("train.py", HOSTILE)
    finished = hvdrun("-np", "2", *option, "python", "train.py", environment={"PYTHONPATH": str(hvdrun.directory)})
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] [0, 1]", "[1] [0, 1]"]


def test_a_worker_that_ends_early_is_named_to_those_that_still_communicate(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", LEAVES)
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 1
    assert "Horovod has been shut down on rank 1, and barrier" in finished.stderr
