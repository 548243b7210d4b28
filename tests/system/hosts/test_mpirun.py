"""The command lines of MXNet's Horovod README, with `mpirun` replaced by `hvdrun` and nothing else changed."""

import shlex

import pytest

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster

ONE_HOST = "mpirun -np 4 -H localhost:4 -bind-to none -map-by slot python train.py"
TWO_HOSTS = (
    "mpirun -np 8 -H server1:4,server2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 "
    "-mca btl ^openib python train.py"
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


@pytest.mark.parametrize(
    ("line", "hosts", "debug", "said"),
    [
        (ONE_HOST, ("launcher",), None, ""),
        (TWO_HOSTS, ("server1", "server2"), "INFO", "hvdrun: -mca has no effect: there is no MPI underneath"),
    ],
    ids=["one host", "two hosts"],
)
def test_mpirun_s_own_command_line(
    build: BuildCluster, line: str, hosts: tuple[str, ...], debug: str | None, said: str
) -> None:
    cluster = build([HostPlan("server1"), HostPlan("server2")])
    cluster.write("train.py", TRAIN)
    program, *arguments = shlex.split(line)
    assert program == "mpirun"
    finished = cluster(*arguments)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.startswith(said)
    assert len(finished.stderr.splitlines()) == bool(said)
    size = 4 * len(hosts)
    lines = sorted(line.split("] ")[1] for line in finished.stdout.splitlines())
    assert lines == [f"{n} {n % 4} {hosts[n // 4]} {size} {debug} False" for n in range(size)]
