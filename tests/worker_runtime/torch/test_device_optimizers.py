"""What of an optimizer's work depends on the device: kinds of Adam, autocast, and on GPUs streams."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.torch.training import check_replicas, train

pytestmark = pytest.mark.devices


@pytest.mark.parametrize("kind", ["foreach", "fused", "capturable"])
def test_each_kind_of_adam_trains_alike(ranks: RankPool, kind: str) -> None:
    replicas = ranks.run(lambda: train(f"Adam, {kind}", hvd.rank(), hvd.size()))
    check_replicas(replicas, train("Adam"), tolerance=1e-4)  # steps are counted in float32


def enter_side_stream(device: torch.device) -> AbstractContextManager[object]:
    """A side stream that is late, and waits for nothing; on a CPU nothing."""
    if device.type == "cpu":
        return nullcontext()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        stream.wait_stream(torch.cuda.default_stream())
    return torch.cuda.stream(stream)


@pytest.mark.parametrize("optimizer", ["SGD", "LBFGS"])
def test_backward_and_step_may_run_on_a_side_stream(ranks: RankPool, optimizer: str) -> None:
    def body() -> object:
        def enter(device: torch.device) -> AbstractContextManager[object]:
            if device.type == "cuda":
                torch.cuda.synchronize()  # the streams of two steps are not ordered
            return enter_side_stream(device)

        return train(optimizer, hvd.rank(), hvd.size(), enter=enter)

    check_replicas(ranks.run(body), train(optimizer))


def test_a_gradient_may_come_on_another_stream_than_that_of_the_step(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1 << 16)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
        seen = []
        for step in range(5):
            optimizer.zero_grad()
            losses = []
            for place, parameter in enumerate(parameters):
                with enter_side_stream(parameter.device) if place == step % 2 else nullcontext():
                    losses.append((parameter * (hvd.rank() + 1)).sum())
            torch.autograd.backward(losses)
            optimizer.step()
            seen.append([parameter.detach().unique().tolist() for parameter in parameters])
        return seen

    assert ranks.run(body) == [[[[-1.5 * step]] * 2 for step in range(1, 6)]] * 2


def test_autocast_to_bfloat16_trains_replicas_that_stay_equal(ranks: RankPool) -> None:
    def enter(device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16)

    def prepare(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        model.float()
        return lambda batch: model(batch.float()).float()

    replicas = ranks.run(lambda: train("SGD", hvd.rank(), hvd.size(), prepare=prepare, enter=enter))
    assert {parameter.dtype for replica in replicas for parameter in replica} == {torch.float32}
    check_replicas(replicas, train("SGD", prepare=prepare, enter=enter), tolerance=2e-2)


def train_embedding(rank: int = 0, size: int = 1) -> list[torch.Tensor]:
    """An embedding with sparse gradients, and a dense layer behind it; the indices of all ranks, or of one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1)).double()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if size > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for step in range(4):
        optimizer.zero_grad()
        model((torch.arange(8)[rank::size] + step) % 10).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_an_embedding_with_sparse_gradients_trains_as_on_one_process(ranks: RankPool) -> None:
    check_replicas(ranks.run(lambda: train_embedding(hvd.rank(), hvd.size())), train_embedding())


def train_in_turns(rank: int = 0, size: int = 1) -> list[torch.Tensor]:
    """Two models that are trained against each other, each by an optimizer of its own."""
    torch.manual_seed(0)
    generator, judge = torch.nn.Linear(3, 2).double(), torch.nn.Linear(2, 1).double()
    optimizers: list[torch.optim.Optimizer] = []
    for name, model in (("generator", generator), ("judge", judge)):
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if size > 1:
            named = [(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()]
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
        optimizers.append(optimizer)
    for step in range(4):
        noise = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3)[rank::size] * (step + 1)
        optimizers[1].zero_grad()
        (judge(generator(noise).detach()).square().mean() - judge(noise[:, :2]).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-judge(generator(noise)).mean()).backward()
        optimizers[0].step()
        judge.zero_grad()  # what the generator's loss has left there
    return [parameter.detach() for model in (generator, judge) for parameter in model.parameters()]


def test_two_models_train_against_each_other_as_on_one_process(ranks: RankPool) -> None:
    check_replicas(ranks.run(lambda: train_in_turns(hvd.rank(), hvd.size())), train_in_turns())
