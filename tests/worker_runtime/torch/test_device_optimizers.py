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
    check_replicas(replicas, train("Adam"), tolerance=1e-5)  # steps are counted in float32


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
