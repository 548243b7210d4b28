"""A worker is killed while others train on GPUs: through gloo on one device, through NCCL on one each."""

import pytest
import torch
import torch.distributed as dist

from tests.system.launcher import Launcher

DEVICES = torch.cuda.device_count()
NCCL_DEVICES = DEVICES if dist.is_nccl_available() else 0

# Rank 1 dies while its gradients are on their way; the others make all steps, and end alike.
TRAIN = """
import os, signal
import torch
import worker_runtime.torch as hvd

hvd.init()
device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
torch.cuda.set_device(device)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 1)).to(device)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
victim = hvd.rank() == 1
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(16, 64, device=device)).square().mean().backward()
    if victim and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
total = sum(parameter.detach().double().sum() for parameter in model.parameters())
gathered = hvd.allgather(total.reshape(1).cpu())
print("ended", hvd.size(), len(set(gathered.tolist())), flush=True)
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "size"),
    [
        pytest.param("gloo", 3, marks=pytest.mark.skipif(DEVICES < 1, reason="there is no CUDA device")),
        pytest.param(
            "nccl", 3, marks=pytest.mark.skipif(NCCL_DEVICES < 3, reason="there are no three CUDA devices with NCCL")
        ),
    ],
)
def test_survivors_go_on(hvdrun: Launcher, backend: str, size: int) -> None:
    hvdrun.write("train.py", TRAIN)
    finished = hvdrun("-np", str(size), "--min-np", "1", "--backend", backend, "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count(f"ended {size - 1} 1\n") == size - 1
