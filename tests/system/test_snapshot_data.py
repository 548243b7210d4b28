"""The loop of the docs that continues in the middle of an epoch has each sample once, and the same dropout."""

import re

from tests.documentation import find_blocks, read
from tests.system.launcher import Launcher

(_RECIPE,) = (block for block in find_blocks(read(), "py") if "snapshot.samples" in block)
_STEP = """print("sample", snapshot.step, size, snapshot.epoch, *y.tolist(), flush=True)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if rounds == "0" and snapshot.step == LOST and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)"""
_LOOP = _RECIPE.replace("...", _STEP).replace("< 10", "< 2").replace("32", "2")
TRAIN = f"""
import os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from hvdrun.torch import Snapshot

rounds, LOST = os.environ["TORCHELASTIC_RESTART_COUNT"], int(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
dataset = TensorDataset(torch.linspace(0, 1, 80).view(20, 4), torch.arange(20))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
snapshot = Snapshot(model=model, optimizer=optimizer, epoch=0, samples=0, step=0)
snapshot.restore()
{_LOOP}
print("end", sum(each.double().sum().item() for each in net.parameters()), torch.rand(1).item(), flush=True)
model = optimizer = None
dist.barrier()
dist.destroy_process_group()
"""


def test_a_loop_that_continues_in_an_epoch_is_the_same_as_without_a_loss(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAIN)
    ends, samples = [], []
    for lost in ("-1", "7"):
        finished = hvdrun("-np", "2", "--max-restarts", "2", "python", "train.py", lost)
        assert finished.returncode == 0, finished.stderr
        ends.append(sorted(re.findall(r"end .*", finished.stdout)))
        samples.append(set(re.findall(r"\[\d\] sample .*", finished.stdout)))
    assert "continuing from the snapshot of save" in finished.stderr
    assert samples[1] == samples[0]
    assert ends[1] == ends[0]


def test_each_sample_comes_once_where_the_next_round_has_fewer_workers(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAIN)
    words = ("-np", "3", "--min-np", "2", "--slot-failures", "1", "--max-restarts", "2")
    finished = hvdrun(*words, "python", "train.py", "2")
    assert finished.returncode == 0, finished.stderr
    assert "continuing from the snapshot of save" in finished.stderr
    lines = [[*map(int, line.split())] for line in re.findall(r"sample (.*)", finished.stdout)]
    last = {step: min(size for at, size, *_ in lines if at == step) for step, *_ in lines}  # who has done each step
    assert set(last.values()) == {3, 2}
    for epoch in (0, 1):
        done = [rest for step, size, at, *rest in lines if (at, size) == (epoch, last[step])]
        seen = [sample for batch in done for sample in batch]
        assert len(seen) == len(set(seen)) > 20 - 4
