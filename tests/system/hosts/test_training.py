"""Scripts and command lines for torchrun and mpirun train on several hosts; `test_recovery.py` has our own."""

import shlex

import pytest

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster

# A script for torchrun, which imports nothing of hvdrun.
FOR_TORCHRUN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
print(dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"], value.item(), flush=True)
dist.destroy_process_group()
"""

# The line for several hosts of MXNet's Horovod README, without its first word.
MPIRUN_LINE = (
    "-np 8 -H server1:4,server2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib "
    "python train.py"
)
FOR_MPIRUN = """
import os, socket
import torch
import worker_runtime.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
is_bound = len(os.sched_getaffinity(0)) < os.cpu_count()
facts = hvd.rank(), hvd.local_rank(), socket.gethostname(), int(total), os.environ.get("NCCL_DEBUG"), is_bound
print(*facts, flush=True)
"""


@pytest.mark.nightly
def test_a_script_written_for_torchrun_runs_on_this_machine_and_another(pair: Cluster) -> None:
    pair.write("train.py", FOR_TORCHRUN)
    finished = pair("-np", "3", "-H", "localhost:1,host2:2", "python", "train.py", forks=True)
    assert finished.returncode == 0, finished.stderr
    said = sorted(finished.stdout.splitlines())
    assert said == ["[0@localhost] 0 3 0 3.0", "[1@host2] 1 3 0 3.0", "[2@host2] 2 3 1 3.0"]


@pytest.mark.nightly
def test_the_command_line_of_mpirun_for_two_hosts_trains_with_hvdrun(build: BuildCluster) -> None:
    cluster = build([HostPlan("server1"), HostPlan("server2")])
    cluster.write("train.py", FOR_MPIRUN)
    finished = cluster(*shlex.split(MPIRUN_LINE), forks=True)
    assert finished.returncode == 0, finished.stderr
    (said,) = finished.stderr.splitlines()
    assert said.startswith("hvdrun: -mca has no effect: there is no MPI underneath")
    lines = sorted(line.split("] ")[1] for line in finished.stdout.splitlines())
    assert lines == [f"{n} {n % 4} server{n // 4 + 1} 8 INFO False" for n in range(8)]
