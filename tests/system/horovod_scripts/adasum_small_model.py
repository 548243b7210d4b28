"""Fit a line with Adasum, in the form of Horovod's small example."""

import argparse
import json

import horovod.torch as hvd
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5)


class Net(nn.Module):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2, bias=False, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return self.fc(x)


def main() -> None:
    """Train, each rank on samples of its own."""
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(7)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=net.named_parameters(),
        op=hvd.Adasum,
    )
    start = net.fc.weight.detach().clone()
    generator = torch.Generator().manual_seed(hvd.rank())
    x = torch.randn(args.steps, 8, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(args.steps, 8, 2, generator=generator, dtype=torch.float64)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[step]), y[step])
        loss.backward()
        optimizer.step()
    weights = hvd.allgather(net.fc.weight.detach().unsqueeze(0), name="weights")
    if hvd.rank() == 0:
        print(json.dumps({"start": start.tolist(), "steps": args.steps, "weights": weights.tolist()}))


if __name__ == "__main__":
    main()
