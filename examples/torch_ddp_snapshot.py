"""A script of torch.distributed that loses no step: it continues from a snapshot in memory after a restart.

    hvdrun -np 2 --max-restarts 3 python examples/torch_ddp_snapshot.py

With --kill-at 50 a worker is killed after fifty steps of the first round, to show it.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

from hvdrun.torch import Snapshot

BATCH = 32


def read_arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kill-at", type=int, help="the step after which rank 1 is killed, once")
    return parser.parse_args()


def main() -> None:
    """Train a small network on handwritten digits."""
    arguments = read_arguments()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    digits = load_digits()
    images = torch.from_numpy(digits.data).float() / 16
    numbers = torch.from_numpy(digits.target)
    torch.manual_seed(1 + dist.get_rank())  # each rank draws its own samples
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    snapshot = Snapshot(model=model, optimizer=optimizer, step=0)
    if snapshot.restore() and dist.get_rank() == 0:
        print(f"{snapshot.step} steps are done", flush=True)
    while snapshot.step < arguments.steps:
        drawn = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[drawn].to(device)), numbers[drawn].to(device))
        loss.backward()
        optimizer.step()
        snapshot.step += 1
        snapshot.save()
        is_first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if snapshot.step == arguments.kill_at and dist.get_rank() == 1 and is_first_round:
            os.kill(os.getpid(), signal.SIGKILL)

    if dist.get_rank() == 0:
        right = (net(images.to(device)).argmax(dim=1).cpu() == numbers).float().mean()
        print(f"accuracy on the training data: {right:.3f}")
    del model, optimizer  # DDP ends before its process group
    dist.barrier()  # and no worker closes its connections while another one needs them
    dist.destroy_process_group()


main()
