"""An optimizer steps with averaged gradients, also by other methods than `step()`, or raises."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.torch.training import check_replicas, make_model
from worker_runtime.errors import LocalStepError

pytestmark = pytest.mark.devices

STEPS = 5
RADIUS = 0.05


class SharpnessAware(torch.optim.SGD):
    """SAM: steps from where it is with the gradient of a place uphill."""

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb, and clear the gradients."""
        norm = torch.stack([parameter.grad.norm() for parameter in self._list()]).norm()
        for parameter in self._list():
            self.state[parameter]["start"] = parameter.clone()
            parameter.add_(parameter.grad * RADIUS / norm)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Return, step, and clear the gradients."""
        for parameter in self._list():
            parameter.copy_(self.state[parameter].pop("start"))
        self.step()
        self.zero_grad()

    def eval(self) -> None:
        """Exchange the parameters, as an optimizer without a schedule does."""
        self.train()

    @torch.no_grad()
    def train(self) -> None:
        """Exchange them."""
        for parameter in self._list():
            parameter.neg_()

    def show_norm(self) -> float:
        """Look at gradients."""
        return sum(parameter.grad.norm().item() for parameter in self._list())

    def _list(self) -> Iterator[Any]:
        return (parameter for group in self.param_groups for parameter in group["params"])


def differentiate(model: torch.nn.Module, step: int, rank: int = 0, size: int = 1) -> None:
    batch = torch.randn(12, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)[rank::size]
    model(batch).square().mean().backward()


def test_steps_after_synchronize_are_those_of_one_process(ranks: RankPool) -> None:
    def body() -> list[torch.Tensor]:
        model = make_model()
        plain = SharpnessAware(model.parameters(), lr=0.1, momentum=0.9)
        optimizer: Any = hvd.DistributedOptimizer(plain, model.named_parameters())
        for step in range(STEPS):
            for move in (optimizer.first_step, optimizer.second_step):
                differentiate(model, step, hvd.rank(), hvd.size())
                optimizer.synchronize()
                move()
        return [parameter.detach() for parameter in model.parameters()]

    model = make_model()
    plain = SharpnessAware(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        for move in (plain.first_step, plain.second_step):
            differentiate(model, step)
            move()
    check_replicas(ranks.run(body), [parameter.detach() for parameter in model.parameters()])


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_a_step_with_gradients_of_one_rank_is_refused(ranks: RankPool, op: int) -> None:
    def body() -> None:
        model = make_model()
        optimizer: Any = hvd.DistributedOptimizer(SharpnessAware(model.parameters(), lr=0.1), op=op)
        for step in range(STEPS):
            differentiate(model, step, hvd.rank(), hvd.size())
            with pytest.raises(LocalStepError, match=r"^optimizer\.first_step\(\) steps with this rank's own"):
                optimizer.first_step()

    ranks.run(body)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
@pytest.mark.parametrize("is_dropped", [False, True], ids=["kept", "dropped"])
def test_the_optimizer_that_was_wrapped_does_not_step_by_itself(ranks: RankPool, op: int, *, is_dropped: bool) -> None:
    def body() -> object:
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        distributed = [hvd.DistributedOptimizer(plain, op=op)]
        if is_dropped:
            distributed.clear()
        for step in range(STEPS):
            plain.zero_grad()
            differentiate(model, step, hvd.rank(), hvd.size())
            with pytest.raises(LocalStepError, match=r"^optimizer\.step\(\) steps with this rank's own gradients"):
                plain.step()
        optimizer = hvd.DistributedOptimizer(plain, op=op)
        optimizer.step()
        plain.step() if op == hvd.Average else optimizer.step()  # with averaged gradients
        return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()

    first, second = ranks.run(body)
    assert first == second


def test_a_copy_is_free_and_the_wrapped_optimizer_after_the_distributed_one(ranks: RankPool) -> None:
    def body() -> None:
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain)
        differentiate(model, 0, hvd.rank(), hvd.size())
        copy.deepcopy(plain).step()
        optimizer.step()
        del optimizer
        differentiate(model, 1, hvd.rank(), hvd.size())
        plain.step()

    ranks.run(body)


def test_methods_that_use_no_gradients_are_called_at_any_time(ranks: RankPool) -> None:
    def body() -> None:
        model = make_model()
        optimizer: Any = hvd.DistributedOptimizer(SharpnessAware(model.parameters(), lr=0.1))
        for step in range(STEPS):
            differentiate(model, step, hvd.rank(), hvd.size())
            assert optimizer.show_norm() > 0
            optimizer.eval()
            optimizer.train()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.eval()

    ranks.run(body)


def test_a_rank_alone_steps_by_any_method(ranks: RankPool) -> None:
    def body() -> None:
        model = make_model()
        for op in (hvd.Average, hvd.Adasum):
            optimizer: Any = hvd.DistributedOptimizer(SharpnessAware(model.parameters(), lr=0.1), op=op)
            for move in (optimizer.first_step, optimizer.second_step):
                differentiate(model, 0)
                move()

    ranks.run(body, size=1)
