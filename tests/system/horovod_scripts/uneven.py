"""Train where the ranks have different numbers of batches: who has no more joins, and waits for the others.

Rank 0 then trains alone as all did together, and prints what came out of both.
"""

import json

import horovod.torch as hvd
import torch
from torch import nn

EPOCHS = 3


def count_batches(rank: int) -> int:
    """Rank 0 has the fewest."""
    return 2 + 3 * rank


def make_batch(rank: int, epoch: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of a rank."""
    generator = torch.Generator().manual_seed(10000 * rank + 100 * epoch + index)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True)


def build() -> nn.Module:
    """The same on every call."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def train_together() -> tuple[nn.Module, list[int]]:
    """Each rank on its own batches; also who joined last in each epoch."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    last = []
    for epoch in range(EPOCHS):
        for index in range(count_batches(hvd.rank())):
            x, y = make_batch(hvd.rank(), epoch, index)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            hvd.allreduce(loss.detach())
        last.append(hvd.join())
        hvd.allreduce(torch.tensor(1.0))
    # Who has joined takes part in the reductions, but not in the steps: the last one has made them all.
    hvd.broadcast_parameters(model.state_dict(), root_rank=last[-1])
    hvd.broadcast_optimizer_state(optimizer, root_rank=last[-1])
    return model, last


def train_alone(size: int) -> nn.Module:
    """What the rank with the most batches should have: averages always divide by the full size."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    others = [build() for _ in range(size - 1)]
    momenta = [torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9) for other in others]
    models, optimizers = [*others, model], [*momenta, optimizer]
    for epoch in range(EPOCHS):
        for index in range(count_batches(size - 1)):
            active = [rank for rank in range(size) if index < count_batches(rank)]
            for rank in active:
                optimizers[rank].zero_grad()
                x, y = make_batch(rank, epoch, index)
                nn.functional.mse_loss(models[rank](x), y).backward()
            for parameters in zip(*(models[rank].parameters() for rank in active), strict=True):
                mean = torch.stack([parameter.grad for parameter in parameters]).sum(0) / size
                for parameter in parameters:
                    parameter.grad = mean.clone()
            for rank in active:
                optimizers[rank].step()
    return model


def main() -> None:
    """Train in both ways."""
    hvd.init()
    together, last = train_together()
    found = nn.utils.parameters_to_vector(together.parameters()).detach()
    everywhere = hvd.allgather(found.unsqueeze(0))
    if hvd.rank() == 0:
        alone = nn.utils.parameters_to_vector(train_alone(hvd.size()).parameters()).detach()
        print(json.dumps({"last": last, "together": everywhere.tolist(), "alone": alone.tolist()}))


if __name__ == "__main__":
    main()
