"""A small network to train, and its training by several ranks or by one."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch

import worker_runtime.torch as hvd


def make_model() -> torch.nn.Module:
    """The same on all ranks."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def make_capturable(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Adam whose steps a CUDA graph could capture; on a CPU, for which torch has none of that kind, plain."""
    listed = list(parameters)
    return torch.optim.Adam(listed, lr=0.01, capturable=listed[0].is_cuda)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=False),
    "Adam, foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "Adam, fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
    "Adam, capturable": make_capturable,
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, line_search_fn="strong_wolfe"),
}


def train(
    optimizer_name: str,
    rank: int = 0,
    size: int = 1,
    prepare: Callable[[torch.nn.Module], Callable[[torch.Tensor], torch.Tensor]] = lambda model: model,
    enter: Callable[[torch.device], AbstractContextManager[object]] = nullcontext,
    **settings: object,
) -> list[torch.Tensor]:
    """Train for some steps, LBFGS with a closure, and return the parameters; alone with the batches of all ranks.

    Args:
        optimizer_name: the name of the torch optimizer.
        rank: the rank of this process.
        size: how many train.
        prepare: what is called instead of the model.
        enter: a context for each step, on a device.
        **settings: of the distributed optimizer.
    """
    model = make_model()
    called = prepare(model)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    if size > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **settings)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(6):
        batch = torch.randn(12, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)[rank::size]

        def compute(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = called(batch).square().mean()
            loss.backward()
            return loss.detach()

        with enter(batch.device):
            if optimizer_name == "LBFGS":
                optimizer.step(compute)
            else:
                compute()
                optimizer.step()
        schedule.step()
    if batch.is_cuda:
        torch.cuda.synchronize()  # a step may have been made on another stream
    return [parameter.detach() for parameter in model.parameters()]


def check_replicas(replicas: list[list[torch.Tensor]], reference: list[torch.Tensor], tolerance: float = 1e-8) -> None:
    """All have the same parameters to the last bit, which are those of the reference but for a tolerance."""
    for replica in replicas:
        for parameter, first, expected in zip(replica, replicas[0], reference, strict=True):
            assert torch.equal(parameter, first)
            torch.testing.assert_close(parameter, expected, rtol=tolerance, atol=tolerance / 100)
