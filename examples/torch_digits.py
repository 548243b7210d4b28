"""Train a small convolutional network on scikit-learn's handwritten digits with any number of workers.

    hvdrun -np 2 python examples/torch_digits.py

The data comes with scikit-learn, so nothing is downloaded. Without hvdrun the script trains alone. With `--checkpoint
FILE` a job that receives a stop notice (SIGUSR2 to hvdrun) saves there and exits with 75; the same command continues.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import worker_runtime.torch as hvd

TEST_SAMPLES = 360  # of 1,797


class ReplicasDifferError(RuntimeError):
    """The workers' networks are not equal, bit for bit."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per worker and step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="makes a run repeatable (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="file for a job that is stopped and continued")
    return parser.parse_args()


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The digits as images of shape (1, 8, 8) with values 0 to 1, split into training and test data."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_network() -> nn.Module:
    """Two convolutions and two linear layers: images of shape (n, 1, 8, 8) to scores of shape (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def move(batches: Iterable[Sequence[torch.Tensor]], device: torch.device) -> Iterator[list[torch.Tensor]]:
    """The same batches on a device."""
    for batch in batches:
        yield [tensor.to(device, non_blocking=True) for tensor in batch]


def train_epoch(network: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader) -> float:
    """Train on this worker's part of the data; return the mean loss over all workers."""
    network.train()
    device = next(network.parameters()).device
    total = torch.zeros((), device=device)
    for images, labels in move(batches, device):
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return hvd.allreduce(total / len(batches), name="loss").item()


def measure_accuracy(network: nn.Module, data: TensorDataset) -> float:
    """The share of right answers over all test data; each worker tests its part."""
    network.eval()
    device = next(network.parameters()).device
    images, labels = (tensor[hvd.rank() :: hvd.size()].to(device) for tensor in data.tensors)
    with torch.no_grad():
        right = (network(images).argmax(dim=1) == labels).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(data)


def check_replicas(network: nn.Module) -> None:
    """Raise ReplicasDifferError unless all workers have the same network."""
    mine = nn.utils.parameters_to_vector(network.parameters()).detach().view(torch.int32)
    replicas = hvd.allgather(mine.unsqueeze(0), name="replicas")
    different = [rank for rank, replica in enumerate(replicas) if not torch.equal(replica, replicas[0])]
    if different:
        raise ReplicasDifferError(f"the networks of ranks {different} differ from that of rank 0")


def main() -> None:
    """Train, test, and compare the replicas."""
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(arguments.seed)
    train_data, test_data = load_data(arguments.seed)
    sampler: DistributedSampler = DistributedSampler(
        train_data, num_replicas=hvd.size(), rank=hvd.rank(), seed=arguments.seed
    )
    batches = DataLoader(train_data, batch_size=arguments.batch_size, sampler=sampler)

    device = hvd.pin_device()  # this worker's GPU, or the CPU where there is none
    if hvd.rank() == 0:
        print(hvd.describe_device(device), flush=True)
    network = build_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=arguments.lr * hvd.size(), momentum=arguments.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=arguments.epochs)
    saved = {"network": network, "optimizer": optimizer, "schedule": schedule}
    begin = 0
    if arguments.checkpoint and arguments.checkpoint.exists():  # all hosts share it
        checkpoint = torch.load(arguments.checkpoint, map_location=device)
        begin = checkpoint.pop("epochs")
        for name, state in checkpoint.items():
            saved[name].load_state_dict(state)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(begin, arguments.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(network, optimizer, batches)
        schedule.step()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d} of {arguments.epochs}: loss {loss:.4f}", flush=True)
        if arguments.checkpoint and hvd.stopping():  # the same on all ranks
            if hvd.rank() == 0:
                states = {name: each.state_dict() for name, each in saved.items()}
                torch.save({"epochs": epoch + 1, **states}, arguments.checkpoint)
            sys.exit(75)

    check_replicas(network)
    accuracy = measure_accuracy(network, test_data)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.3f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
