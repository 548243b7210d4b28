"""Small trainings that several workers and one process must do alike."""

from collections.abc import Callable

import torch

import worker_runtime.torch as hvd

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, line_search_fn="strong_wolfe"),
}
STEPS = 6


def make_model() -> torch.nn.Module:
    """The same on all ranks."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def make_batch(step: int, rank: int, size: int) -> torch.Tensor:
    """The part of a rank; all parts together are the batch of one process."""
    whole = torch.randn(12, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return whole[rank::size]


def train(
    optimizer_name: str,
    rank: int = 0,
    size: int = 1,
    prepare: Callable[[torch.nn.Module], torch.nn.Module] = lambda model: model,
    **settings: object,
) -> list[torch.Tensor]:
    """Train for a few steps, with the whole batch when the size is 1, and return the parameters.

    Args:
        optimizer_name: of OPTIMIZERS; LBFGS steps with a closure.
        rank: of this worker.
        size: of the world; 1 for one process with the whole batch.
        prepare: makes of the model what is called.
        settings: of the distributed optimizer.
    """
    model = make_model()
    called = prepare(model)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    if size > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **settings)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(STEPS):
        batch = make_batch(step, rank, size)

        def compute(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = called(batch).square().mean()
            loss.backward()
            return loss.detach()

        if optimizer_name == "LBFGS":
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
        schedule.step()
    return [parameter.detach() for parameter in model.parameters()]
