"""State returns to the last commit while reductions of gradients are under way: they end, and training continues."""

import pytest

from tests.system.launcher import Launcher

# Each gradient is the step and the rank, averaged: the fifteen steps of three ranks make -(1 + 2 + ... + 15).
# The optimizers are used in another order than the state holds them. FATE is what happens on rank 1, once.
SCRIPT = """
import os, signal, torch
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError

fate, optimizers = os.environ["FATE"], int(os.environ["OPTIMIZERS"])
hvd.init()
models = [torch.nn.Linear(1, 1, bias=False) for _ in range(optimizers)]
for model in models:
    torch.nn.init.zeros_(model.weight)
def wrap(number, model):
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    return hvd.DistributedOptimizer(plain, model.named_parameters(prefix=str(number)))

pairs = [(model, wrap(number, model)) for number, model in enumerate(models)]
named = {f"optimizer{n}": optimizer for n, (_, optimizer) in enumerate(pairs)}
state = hvd.elastic.TorchState(**{f"model{n}": model for n, model in enumerate(models)}, **named, step=0)

@hvd.elastic.run
def train(state):
    while state.step < 15:
        for model, optimizer in reversed(pairs):
            optimizer.zero_grad()
            model(torch.full((1, 1), float(state.step + hvd.rank()))).sum().backward()
        if state.step == 7 and hvd.rank() == 1 and not os.path.exists("failed"):
            open("failed", "w").close()
            if fate == "raises":
                raise HorovodInternalError("the program's own")
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "gathers":
            hvd.allgather(torch.ones(1))
        for model, optimizer in reversed(pairs):
            optimizer.step()
        state.step += 1
        if state.step % 5 == 0:
            state.commit()

train(state)
print("end", [model.weight.item() for model in models], flush=True)
"""
TOTAL = -120.0


@pytest.mark.nightly
@pytest.mark.parametrize(("fate", "least", "optimizers"), [("raises", 1, 2), ("killed", 3, 2), ("gathers", 3, 1)])
def test_ranks_begin_again_and_apply_each_step_once(hvdrun: Launcher, fate: str, least: int, optimizers: int) -> None:
    """There may be fewer of the three workers: `least` says how few."""
    hvdrun.write("train.py", SCRIPT)
    environment = {"FATE": fate, "OPTIMIZERS": str(optimizers)}
    finished = hvdrun("-np", "3", "--min-np", str(least), "python", "train.py", environment=environment)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [f"[{rank}] end {[TOTAL] * optimizers}" for rank in range(3)]
