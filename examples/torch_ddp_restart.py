"""A script of torch.distributed that comes back: it continues from its checkpoint when all workers are started again.

    hvdrun -np 2 --max-restarts 3 python examples/torch_ddp_restart.py

With --kill-at 5 a worker is killed after five epochs of the first round, to show it.
"""

import argparse
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def read_arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, help="on a disk that all hosts share")
    parser.add_argument("--kill-at", type=int, help="the epoch at whose end rank 1 is killed, once")
    return parser.parse_args()


def save(path: Path, **state: object) -> None:
    """Write a checkpoint, so that a loss in between leaves the former one."""
    writing = path.with_suffix(".writing")
    torch.save(state, writing)
    writing.rename(path)


def main() -> None:
    """Train a small network on handwritten digits."""
    arguments = read_arguments()
    # One file for each job: the id stays when all workers are started again.
    job = os.environ["TORCHELASTIC_RUN_ID"]
    path = arguments.checkpoint or Path(tempfile.gettempdir(), f"torch_ddp_restart.{job}.pt")

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    digits = load_digits()
    data = TensorDataset(torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    first = 0
    if path.exists():
        saved = torch.load(path, map_location=device)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    for epoch in range(first, arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            save(path, model=net.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch + 1)
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        is_first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if epoch == arguments.kill_at and dist.get_rank() == 1 and is_first_round:
            os.kill(os.getpid(), signal.SIGKILL)

    if dist.get_rank() == 0:
        right = (net(data.tensors[0].to(device)).argmax(dim=1).cpu() == data.tensors[1]).float().mean()
        print(f"accuracy on the training data: {right:.3f}")
        if arguments.checkpoint is None:
            path.unlink()
    del model, optimizer  # DDP ends before its process group
    dist.barrier()  # and no worker closes its connections while another one needs them
    dist.destroy_process_group()


main()
