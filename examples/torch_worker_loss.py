"""Kill one worker of a running job, and measure how long the others need until they continue.

    hvdrun -np 3 --min-np 2 python examples/torch_worker_loss.py

In the middle of a step, rank 0 sends SIGKILL to the worker of the last rank, which must be on the same host. The others
complete that step. The script itself does nothing for it: no `hvd.elastic.run`, no checkpoint.
"""

import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional
from torch_digits import build_network, check_replicas, load_data

import worker_runtime.torch as hvd

STEPS = 300
STEP_OF_THE_KILL = 200
BATCH = 16


def main() -> None:
    """Train, lose a worker, continue, and say what was lost."""
    hvd.init()
    torch.manual_seed(1)
    device = hvd.pin_device()  # this worker's GPU, or the CPU where there is none
    images, labels = (tensor.to(device) for tensor in load_data(seed=1)[0].tensors)
    pids = hvd.allgather_object(os.getpid())
    network = build_network().to(device)
    steps = nn.Parameter(
        torch.zeros((), device=device)
    )  # each step adds the average of the workers' gradients, which are 1
    groups = [{"params": network.parameters(), "momentum": 0.9}, {"params": [steps], "lr": 1.0, "maximize": True}]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.02))
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    torch.manual_seed(hvd.rank())  # each worker draws its own batches

    if hvd.rank() == 0:
        print(hvd.describe_device(device), flush=True)
    for step in range(1, STEPS + 1):
        batch = torch.randint(len(labels), (BATCH,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(images[batch]), labels[batch])
        (loss + steps).backward()
        began = time.monotonic()
        if step == STEP_OF_THE_KILL and hvd.rank() == 0:
            print(f"step {step} of {STEPS}, {hvd.size()} workers: kill -9 {pids[-1]}", flush=True)
            os.kill(pids[-1], signal.SIGKILL)
        optimizer.step()
        if step == STEP_OF_THE_KILL:
            pause = 1000 * (time.monotonic() - began)
        if step % 50 == 0 and hvd.rank() == 0:
            print(f"step {step} of {STEPS}, {hvd.size()} workers: loss {loss.item():.4f}", flush=True)

    check_replicas(network)
    lost = STEPS - round(steps.item())
    what = {0: "no step was lost", 1: "1 step was lost"}.get(lost, f"{lost} steps were lost")
    if hvd.rank() == 0:
        print(f"the job continued after {pause:.0f} ms; {what}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
