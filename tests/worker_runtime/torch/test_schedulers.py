"""A scaled learning rate follows the number of workers, whatever scheduler calculates it."""

import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.torch.training import make_model

Schedule = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
SCHEDULES: dict[str, Schedule] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=20),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.1, max_lr=0.4, step_size_up=3),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=3, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3, eta_min=0.01),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=9),
    "SWALR": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=6),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=5), lr_scheduler.ExponentialLR(o, gamma=0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), SCHEDULES["LambdaLR"](o)], milestones=[5]
    ),
}


def read_rates(schedule: Schedule, *, grows: bool, is_known: bool = True) -> list[float]:
    """The learning rates of 12 steps of a job of 2 workers, which may have 8 after the third."""
    model, state = make_model(), hvd.elastic.TorchState(epoch=0)
    _, optimizer = hvd.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), state=state, scale_lr=True)
    scheduler = schedule(optimizer)
    if is_known:
        state.register(scheduler=scheduler)
    rates = []
    for step in range(12):
        optimizer.step()
        scheduler.step()
        if grows and step == 3:
            state.save()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("worker_runtime.preparation.RUNTIME", SimpleNamespace(assignment=SimpleNamespace(size=8)))
                state.on_reset()
                state.restore()  # to a commit before the change
                for _ in range(2):
                    state.on_reset()
        assert not is_known or scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_rate_of_a_scheduler_of_the_state_scales_with_the_job(ranks: RankPool, name: str) -> None:
    def body() -> object:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The epoch parameter", UserWarning)  # torch's own SequentialLR
            return [read_rates(SCHEDULES[name], grows=grows) for grows in (False, True)]

    for static, elastic in ranks.run(body):
        assert elastic == pytest.approx([rate * (4 if step >= 3 else 1) for step, rate in enumerate(static)])


def test_a_scheduler_that_the_state_lacks_is_reported_once_when_the_learning_rate_scales(ranks: RankPool) -> None:
    def body() -> object:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            read_rates(SCHEDULES["LambdaLR"], grows=True, is_known=False)
        return [
            re.sub("^.*write ", "", str(each.message)) for each in warned if "not in the state" in str(each.message)
        ]

    assert ranks.run(body) == [["state.register(scheduler=scheduler)"], []]
