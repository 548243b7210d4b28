"""Optimizers of other packages: of a class of their own, with more state than torch's, or around another one."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch import Snapshot

Parameters = list[torch.nn.Parameter]


class Counting(torch.optim.SGD):
    """An optimizer whose state dict has a value of its own: a step is as long as the steps before it are many."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        """See `torch.optim.Optimizer`."""
        self.count += 1
        self.param_groups[0]["lr"] = float(self.count)
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        """See `torch.optim.Optimizer`."""
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer`."""
        super().load_state_dict(state_dict)
        self.count = state_dict["count"]


class Around(Counting):
    """An optimizer around another one: its state dict has another form, and its defaults are not in the groups."""

    def __init__(self, parameters: Parameters, lr: float = 1.0) -> None:
        super().__init__(parameters, lr=lr)
        self.defaults["lookahead"] = 5

    def state_dict(self) -> dict[str, Any]:
        """See `torch.optim.Optimizer`."""
        return {"inner": super().state_dict(), "sums": {"all": [torch.tensor(float(self.count))]}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer`."""
        super().load_state_dict(state_dict["inner"])
        assert state_dict["sums"]["all"][0].item() == self.count


class Foreign:
    """An optimizer of no class of torch, as `schedulefree.ScheduleFreeWrapper`."""

    def __init__(self, parameters: Parameters, lr: float = 1.0) -> None:
        self.base = Counting(parameters, lr=lr)

    param_groups = property(lambda self: self.base.param_groups)

    def step(self) -> None:
        """Step."""
        self.base.step()

    def zero_grad(self, *arguments: bool) -> None:
        """Clear the gradients."""
        self.base.zero_grad(*arguments)

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer inside."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it."""
        self.base.load_state_dict(state_dict)


class Bare(Foreign):
    """An optimizer that shows no state, and whose zero_grad() takes no argument, as those of fairseq."""

    def __init__(self, parameters: Parameters) -> None:
        self.base = Counting(parameters, lr=1.0, momentum=0.5)

    def zero_grad(self) -> None:  # type: ignore[override]  # fairseq's takes no argument
        """Clear the gradients."""
        self.base.zero_grad()


Make = Callable[..., Any]
MAKERS = pytest.mark.parametrize("make", [Counting, Around, Foreign])


def train(parameter: torch.nn.Parameter, optimizer: Any, steps: int = 1) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        (parameter * (1.0 + hvd.rank())).sum().backward()
        optimizer.step()
    return parameter.item()


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    """A weight."""
    return torch.nn.Parameter(torch.zeros(1))


@MAKERS
def test_gradients_are_averaged(ranks: RankPool, make: Make, parameter: torch.nn.Parameter) -> None:
    def body() -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HVD_CHECK_REPLICAS", "1")
            optimizer = hvd.DistributedOptimizer(make([parameter], lr=1.0))
        return train(parameter, optimizer, steps=3)

    assert ranks.run(body) == [-9.0] * 2  # 1.5 times 1 + 2 + 3


@MAKERS
@pytest.mark.parametrize("sync", ["broadcast", "state"])
def test_all_state_becomes_the_roots(ranks: RankPool, make: Make, sync: str, parameter: torch.nn.Parameter) -> None:
    def body() -> float:
        plain = make([parameter], lr=1.0)
        if hvd.rank() == 0:
            train(parameter, plain, steps=2)
            parameter.data.zero_()
        optimizer = hvd.DistributedOptimizer(plain)
        if sync == "broadcast":
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        else:
            hvd.elastic.TorchState(optimizer=optimizer).sync()
        return train(parameter, optimizer)

    assert ranks.run(body) == [-4.5] * 2  # 1.5 times 3


@MAKERS
def test_all_state_is_in_a_checkpoint(
    ranks: RankPool, make: Make, tmp_path: Path, parameter: torch.nn.Parameter
) -> None:
    def body() -> float:
        for steps in (2, 0):
            parameter.data.zero_()
            optimizer = hvd.DistributedOptimizer(make([parameter], lr=1.0))
            state = hvd.elastic.TorchState(optimizer=optimizer)
            train(parameter, optimizer, steps)
            if steps:
                state.save(tmp_path)
        assert state.load(tmp_path)
        return train(parameter, optimizer)

    assert ranks.run(body, size=1) == [-3.0]


@MAKERS
def test_a_reset_clears_the_gradients(ranks: RankPool, make: Make, parameter: torch.nn.Parameter) -> None:
    def body() -> object:
        optimizer = hvd.DistributedOptimizer(make([parameter], lr=1.0))
        state = hvd.elastic.TorchState(optimizer=optimizer)
        parameter.sum().backward()
        state.reset()
        return parameter.grad

    assert ranks.run(body, size=1) == [None]


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_zero_grad_shows_its_parameter_and_passes_it_on(ranks: RankPool, op: int) -> None:
    """Accelerate looks for it, and refuses to pass on what the program gives."""

    def body() -> None:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter]), op=op)
        assert "set_to_none" in inspect.signature(optimizer.zero_grad).parameters
        parameter.grad = torch.ones(1)
        optimizer.zero_grad(set_to_none=False)
        assert parameter.grad.item() == 0
        optimizer.zero_grad()
        assert parameter.grad is None

    ranks.run(body, size=1)


@pytest.mark.parametrize("shape", [[], ["params"]], ids=["torch's groups", "groups without parameters"])
def test_an_optimizer_without_a_visible_state_is_restored(
    ranks: RankPool, shape: list[str], parameter: torch.nn.Parameter
) -> None:
    class Shaped(Bare):
        def state_dict(self) -> dict[str, Any]:
            self.kept = super().state_dict()
            groups = [{name: each for name, each in group.items() if name not in shape} for group in self.param_groups]
            return {**self.kept, "param_groups": groups} if shape else self.kept

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            groups = self.kept["param_groups"]
            super().load_state_dict({**state_dict, "param_groups": groups} if shape else state_dict)

    def body() -> float:
        optimizer = hvd.DistributedOptimizer(Shaped([parameter]))
        state = hvd.elastic.TorchState(optimizer=optimizer)
        train(parameter, optimizer)
        state.save()
        train(parameter, optimizer)
        parameter.data.zero_()
        state.restore()
        return train(parameter, optimizer)

    assert ranks.run(body, size=1) == [-3.0]  # the second step, by a momentum of 1.5


@MAKERS
def test_all_state_is_in_a_snapshot(
    slot: int, make: Make, monkeypatch: pytest.MonkeyPatch, parameter: torch.nn.Parameter
) -> None:
    del slot
    for round_number in range(2):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(round_number))
        optimizer = make([parameter], lr=1.0)
        kept = Snapshot(optimizer=optimizer)
        assert kept.restore() is bool(round_number)
        parameter.grad = torch.ones(1)
        optimizer.step()
        kept.save()
        del kept
    assert parameter.item() == -3.0
