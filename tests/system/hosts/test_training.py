"""Workers on several hosts find each other and train: in our own ways, in torchrun's and in mpirun's."""

import shlex

import pytest

from tests.lab.plan import Family, HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster

TRAIN = """
import torch
import worker_runtime.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
inputs = torch.randn(64, 4)
targets = inputs.sum(dim=1, keepdim=True)
for step in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
weights = hvd.allgather(model.weight.detach())
assert loss.item() < 0.1, loss
assert torch.equal(weights, weights[:1].expand_as(weights)), weights
print("alike", len(weights), flush=True)
"""

# As for torchrun: nothing of hvdrun's is imported.
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


def test_two_hosts_train_as_one_beside_a_network_that_leads_nowhere(build: BuildCluster) -> None:
    cluster = build([HostPlan("host1", decoys=("docker0",)), HostPlan("host2", decoys=("docker0",))])
    cluster.write("train.py", TRAIN)
    finished = cluster("-np", "3", "-H", "host1:2,host2:1", "python", "train.py", forks=True)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0@host1] alike 3", "[1@host1] alike 3", "[2@host2] alike 3"]


@pytest.mark.nightly
def test_a_script_written_for_torchrun_runs_on_this_machine_and_another(pair: Cluster) -> None:
    pair.write("train.py", FOR_TORCHRUN)
    finished = pair("-np", "3", "-H", "localhost:1,host2:2", "python", "train.py", forks=True)
    assert finished.returncode == 0, finished.stderr
    said = sorted(finished.stdout.splitlines())
    assert said == ["[0@localhost] 0 3 0 3.0", "[1@host2] 1 3 0 3.0", "[2@host2] 2 3 1 3.0"]


@pytest.mark.nightly
def test_a_script_written_for_torchrun_runs_over_ipv6(build: BuildCluster) -> None:
    only = (Family.IPV6,)
    cluster = build([HostPlan("host1", families=only)], launcher=HostPlan("launcher", families=only, sshd=None))
    cluster.write("train.py", FOR_TORCHRUN)
    finished = cluster("-np", "2", "-H", "localhost:1,host1:1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0@localhost] 0 2 0 1.0", "[1@host1] 1 2 0 1.0"]


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
