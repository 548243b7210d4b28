"""The command line for several hosts of MXNet's Horovod README, with `mpirun` replaced by `hvdrun`."""

import shlex

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster

LINE = (
    "-np 8 -H server1:4,server2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib "
    "python train.py"
)
TRAIN = """
import os, socket
import torch
import worker_runtime.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
is_bound = len(os.sched_getaffinity(0)) < os.cpu_count()
facts = hvd.rank(), hvd.local_rank(), socket.gethostname(), int(total), os.environ.get("NCCL_DEBUG"), is_bound
print(*facts, flush=True)
"""


def test_the_command_line_of_mpirun_for_two_hosts_trains_with_hvdrun(build: BuildCluster) -> None:
    cluster = build([HostPlan("server1"), HostPlan("server2")])
    cluster.write("train.py", TRAIN)
    finished = cluster(*shlex.split(LINE), forks=True)
    assert finished.returncode == 0, finished.stderr
    (said,) = finished.stderr.splitlines()
    assert said.startswith("hvdrun: -mca has no effect: there is no MPI underneath")
    lines = sorted(line.split("] ")[1] for line in finished.stdout.splitlines())
    assert lines == [f"{n} {n % 4} server{n // 4 + 1} 8 INFO False" for n in range(8)]
