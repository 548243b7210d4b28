"""Train, and with --num-proc start the workers too, in the form of Horovod's MNIST example."""

import argparse
import hashlib

import horovod
import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--num-proc", type=int)
parser.add_argument("--hosts", help="host1:slots,host2:slots,...")
parser.add_argument("--communication", help="gloo or mpi")


class Net(nn.Module):
    """A class of the script itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, kernel_size=3)
        self.fc = nn.Linear(144, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of images of shape (n, 1, 8, 8)."""
        return self.fc(torch.flatten(functional.relu(self.conv(x)), 1))


def train(args: argparse.Namespace) -> None:
    """The same training on each rank."""

    def train_epoch(epoch: int) -> None:
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(data), target).backward()
            optimizer.step()

    def metric_average(val: float, name: str) -> float:
        return hvd.allreduce(torch.tensor(val), name=name).item()

    hvd.init()
    torch.set_num_threads(1)
    images = torch.randn(128, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    torch.manual_seed(hvd.rank() + 1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    for epoch in range(1, args.epochs + 1):
        train_epoch(epoch)
    loss = metric_average(functional.cross_entropy(model(images), dataset.tensors[1]).item(), "avg_loss")
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    print(f"loss {loss:.6f} on {hvd.size()} ranks, parameters", hashlib.sha256(flat.numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    args = parser.parse_args()
    if args.num_proc:
        horovod.run(
            train,
            args=(args,),
            np=args.num_proc,
            hosts=args.hosts,
            use_gloo=args.communication == "gloo",
            use_mpi=args.communication == "mpi",
            verbose=2,
        )
    else:
        train(args)
