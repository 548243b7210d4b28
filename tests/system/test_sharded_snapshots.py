"""A model that lies on several ranks is in a Snapshot by an object that gathers it, as the docs show."""

import re

import pytest

from tests.documentation import find_blocks, read
from tests.system.launcher import Launcher

(_RECIPE,) = (block for block in find_blocks(read(), "py") if "full_state_dict" in block)
TRAIN = f"""
import os, signal, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from hvdrun.torch import Snapshot

rounds = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
victims = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 4))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
{_RECIPE}
snapshot.restore()
while snapshot.step < 8:
    optimizer.zero_grad()
    model(torch.randn(8, 6, generator=torch.Generator().manual_seed(snapshot.step))).square().mean().backward()
    optimizer.step()
    snapshot.step += 1
    snapshot.save()
    print("step", snapshot.step, dist.get_world_size(), flush=True)
    if victims[rounds : rounds + 1] == [f"{{dist.get_rank()}},{{snapshot.step}}"]:
        os.kill(os.getpid(), signal.SIGKILL)
print("end", *(part.full_tensor().double().sum().item() for part in model.parameters()), flush=True)
model = optimizer = None
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_a_gathered_state_loses_no_step_with_as_many_workers_and_with_fewer(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAIN)
    undisturbed = hvdrun("-np", "2", "python", "train.py")
    killed = hvdrun("-np", "2", "--max-restarts", "2", "python", "train.py", "0,3", "1,5")
    smaller = ("-np", "3", "--min-np", "2", "--slot-failures", "1", "--max-restarts", "1")
    shrunk = hvdrun(*smaller, "python", "train.py", "1,4")
    for finished in (undisturbed, killed, shrunk):
        assert finished.returncode == 0, finished.stderr
    expected, again, other = (re.findall(r"end (.*)", each.stdout) for each in (undisturbed, killed, shrunk))
    assert again == expected
    assert len(set(other)) == 1
    # The ranks have the same batches, whose gradients three ranks add in another order than two.
    assert [*map(float, other[0].split())] == pytest.approx([*map(float, expected[0].split())], rel=1e-4)
    assert min(int(step) for step in re.findall(r"step (\d+) 2", shrunk.stdout)) == 5
