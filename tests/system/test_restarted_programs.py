"""Programs as people write them for torchrun, killed twice at random, make the losses of a run without a fault.

There are two workers: the sum of more depends on where gloo and DDP put a number, to the last bit.
"""

import random
import re
from pathlib import Path

import pytest

from tests.system.launcher import Launcher

STEPS = 14
# Each script calls `step_is_done` after each step, and prints nothing itself.
COMMON = """
import os, signal, sys, time
import torch
import torch.distributed as dist

VICTIMS = [tuple(map(int, word.split(","))) for word in sys.argv[1:]]  # (rank, step) of each round
ROUND = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def step_is_done(step, loss):
    if int(os.environ["RANK"]) == 0:
        print(f"step {step} loss {float(loss):.9g}", flush=True)
    if ROUND < len(VICTIMS) and VICTIMS[ROUND] == (int(os.environ["RANK"]), step):
        os.kill(os.getpid(), signal.SIGKILL)

def make_batch(step):
    generator = torch.Generator().manual_seed(1000 * step + int(os.environ["RANK"]))
    return torch.randn(8, 6, generator=generator)
"""
FSDP = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
first = 0
saved = sorted((path for path in os.listdir(".") if path.startswith("step.")), key=lambda path: int(path[5:]))
if saved:
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=saved[-1])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    first = int(saved[-1][5:])
for step in range(first, STEPS):
    optimizer.zero_grad()
    loss = model(make_batch(step)).square().mean()
    loss.backward()
    optimizer.step()
    if (step + 1) % 3 == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="writing")
        if dist.get_rank() == 0:
            os.rename("writing", f"step.{step + 1}")
        dist.barrier()
    step_is_done(step, loss.detach())
dist.destroy_process_group()
"""
ACCUMULATING = """
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
first = 0
if os.path.exists("checkpoint"):
    saved = torch.load("checkpoint")
    first = saved.pop("step")
    for name, state in saved.items():
        parts[name].load_state_dict(state)
for step in range(first, STEPS):
    optimizer.zero_grad()
    batch = make_batch(step)
    with ddp.no_sync():
        ddp(batch[:4]).square().mean().backward()
    loss = ddp(batch[4:]).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if dist.get_rank() == 0 and (step + 1) % 3 == 0:
        torch.save({**{name: part.state_dict() for name, part in parts.items()}, "step": step + 1}, "writing")
        os.rename("writing", "checkpoint")
    step_is_done(step, loss.detach())
dist.destroy_process_group()
"""
PROGRAMS = {"fully_shard and torch.distributed.checkpoint": FSDP, "DDP that accumulates": ACCUMULATING}


def read_losses(output: str) -> list[tuple[int, str]]:
    return [(int(step), loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)]


@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_losses_are_those_of_a_run_without_a_fault(hvdrun: Launcher, program: str) -> None:
    hvdrun.write("train.py", COMMON + f"STEPS = {STEPS}\n" + PROGRAMS[program])
    undisturbed = hvdrun("-np", "2", "python", "train.py")
    expected = dict(read_losses(undisturbed.stdout))
    assert sorted(expected) == list(range(STEPS)), undisturbed.stderr
    for path in Path(hvdrun.directory).glob("[cs][ht]e*"):
        if path.is_dir():
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
        else:
            path.unlink()

    victims = [(random.randrange(2), random.randrange(4, 7)), (random.randrange(2), random.randrange(8, STEPS - 1))]  # noqa: S311 - no secret
    words = [f"{rank},{step}" for rank, step in victims]
    finished = hvdrun("-np", "2", "--max-restarts", "2", "python", "train.py", *words)
    assert finished.returncode == 0, (victims, finished.stderr)
    losses = read_losses(finished.stdout)
    assert [(step, loss) for step, loss in losses if expected[step] != loss] == [], victims
    assert sorted({step for step, _ in losses}) == list(range(STEPS))
