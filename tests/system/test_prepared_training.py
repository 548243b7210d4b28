"""A prepared elastic training uses each sample once an epoch, though a worker is killed and another takes its place."""

from tests.system.launcher import Launcher

# Each use of a sample takes one from its weight. The worker that is killed has made its gradients of a step.
SCRIPT = """
import os, signal, time
import torch
from torch.utils.data import DataLoader
import worker_runtime.torch as hvd

hvd.init()
weights = torch.nn.Embedding(48, 1)
torch.nn.init.zeros_(weights.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights.parameters(), lr=1.0), op=hvd.Sum)
loader = DataLoader(torch.arange(48), batch_size=2, shuffle=True)
state = hvd.elastic.TorchState(epoch=0)
weights, optimizer, loader = hvd.prepare(weights, optimizer, loader, state=state)

@hvd.elastic.run
def train(state):
    while state.epoch < 4:
        while state.epoch == 2 and hvd.size() == 1:  # until the other one is there
            state.commit()
            time.sleep(0.05)
        for step, samples in enumerate(loader, start=1):
            optimizer.zero_grad()
            weights(samples).sum().backward()
            if hvd.rank() == 1 and (state.epoch, step, os.environ["HVD_INCARNATION"]) == (1, 5, "1"):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            if step % 4 == 0:
                state.commit()
        state.epoch += 1

train(state)
print("uses", set((-weights.weight.detach()).flatten().tolist()), "of", hvd.size(), flush=True)
"""


def test_each_sample_is_used_once_an_epoch_through_a_loss_and_a_newcomer(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT)
    finished = hvdrun("-np", "2", "--min-np", "1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] uses {4.0} of 2", "[1] uses {4.0} of 2"]
