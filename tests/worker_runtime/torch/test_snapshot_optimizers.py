"""`Snapshot` and objects of optimizers: states of other dtypes than the parameters, schedulers that come later."""

from typing import Any

import pytest
import torch

from worker_runtime.errors import SnapshotError
from worker_runtime.torch import Snapshot

pytestmark = pytest.mark.usefixtures("slot")


def make_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
    return model, torch.optim.NAdam(model.parameters())


def test_an_optimizer_state_keeps_its_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = make_training()
    kept = Snapshot(model, optimizer)
    kept.restore()
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    kept.save()
    del kept
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    other, continued = make_training()
    assert Snapshot(other, continued).restore()
    before, after = (each.state_dict()["state"][0]["mu_product"] for each in (optimizer, continued))
    assert (after.dtype, after.item()) == (torch.float32, before.item())


def test_an_object_in_the_place_of_a_value_is_refused_after_restore() -> None:
    model, optimizer = make_training()
    kept: Any = Snapshot(model, optimizer, scheduler=None, meter=None)
    kept.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    kept.restore()
    kept.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    kept.meter = 1.5
    for name, value in (("scheduler", None), ("meter", model)):
        with pytest.raises(SnapshotError, match=rf"{name} is an object with a state_dict before .* not both"):
            setattr(kept, name, value)


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, which has no attributes of its own, as accelerate makes it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:  # without torch's
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def state_dict(self) -> Any:
        """See `torch.optim.Optimizer`."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """See `torch.optim.Optimizer`."""
        self.optimizer.load_state_dict(state_dict)


def test_an_optimizer_around_another_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = make_training()
    kept = Snapshot(model, Wrapper(optimizer))
    kept.restore()
    for _ in range(3):
        model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        kept.save()
    del kept
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    other, continued = make_training()
    assert Snapshot(other, Wrapper(continued)).restore()
    assert continued.state_dict()["state"][0]["step"].item() == 3


def test_a_model_of_another_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = make_training()
    kept = Snapshot(model)
    kept.restore()
    kept.save()
    del kept
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(SnapshotError, match=r"weight is of torch.bfloat16 there, and of torch.float32 here"):
        Snapshot(torch.nn.Linear(2, 1)).restore()
