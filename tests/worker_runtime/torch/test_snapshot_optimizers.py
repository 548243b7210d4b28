"""`Snapshot` and optimizers whose state has other dtypes than their parameters."""

import os
from collections.abc import Iterator

import pytest
import torch

from worker_runtime.torch import Snapshot


@pytest.fixture(autouse=True)
def _slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The memory of this process's slot, in the first round."""
    descriptor = os.memfd_create("hvdrun-snapshot")
    monkeypatch.setenv("HVD_SNAPSHOT_FD", str(descriptor))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    yield
    os.close(descriptor)


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
