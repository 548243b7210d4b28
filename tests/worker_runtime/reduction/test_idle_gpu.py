"""A GPU that stands idle is warned once in a job."""

import warnings

import pytest
import torch

from tests.worker_runtime.reduction.gradients import backward, make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World

STEPS = 25  # more than are waited for


def body(engine: ThreadEngine) -> None:
    parameters = make_parameters(2)
    reducer = make_reducer(parameters, engine)
    for _ in range(STEPS):
        backward(parameters, engine.rank + 1)
        reducer.synchronize()


def test_a_model_that_stays_on_the_cpu_beside_a_gpu_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.warns(UserWarning, match=r"sees a GPU, and the first 20 steps .*model\.to\(hvd\.pin_device") as warned:
        World(2).run(body)
    assert len(warned) == 1


def test_without_a_gpu_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        World(2).run(body)
