"""What looks at a training on a device changes nothing there: the check for NaN, a timeline, the account of time."""

import io
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.reduction.finite import FiniteCheck

pytestmark = pytest.mark.devices

STEPS, BAD_STEP = 7, 4
LATE = 50_000_000  # cycles of a GPU


@contextmanager
def refuse_waits(device: torch.device) -> Iterator[None]:
    """A context in which torch refuses to wait for a GPU; on a CPU nothing."""
    if device.type == "cpu":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def train(bad_rank: int) -> str:
    """Some steps, in one of which a rank has a gradient that is not a number; what is said of it."""
    parameters = [torch.nn.Parameter(torch.zeros(1 << 16)) for _ in range(3)]
    named = [(f"p{number}", parameter) for number, parameter in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named)
    factors = torch.ones(STEPS + 1)
    if hvd.rank() == bad_rank:
        factors[BAD_STEP] = float("nan")
    with redirect_stderr(io.StringIO()) as said:
        for step in range(1, STEPS + 1):
            with refuse_waits(factors.device) if step >= BAD_STEP else nullcontext():  # the first ones plan
                optimizer.zero_grad()
                torch.stack([(parameter * factors[step]).sum() for parameter in parameters]).sum().backward()
                optimizer.step()
    return said.getvalue()


def look_late(look: Any, check: FiniteCheck, *arguments: Any) -> None:
    """Look when the device comes to it late, and the reduction, if it does not wait, has been there."""
    if torch.cuda.is_initialized():
        torch.cuda._sleep(LATE)
    look(check, *arguments)


def test_the_average_of_a_gradient_is_not_taken_for_a_rank_s_own(ranks: RankPool) -> None:
    def body() -> str:
        look = FiniteCheck.look
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HVD_CHECK_NAN", "1")
            patch.setattr(FiniteCheck, "look", lambda check, *arguments: look_late(look, check, *arguments))
            return train(bad_rank=1)

    line = f"hvdrun: rank 1's gradient of p2 is not finite (NaN) in step {BAD_STEP}, and 2 more of its gradients\n"
    assert ranks.run(body) == [line, ""]


def test_a_timeline_waits_for_no_device(ranks: RankPool) -> None:
    def body(folder: str) -> bytes:
        hvd.start_timeline(f"{folder}/{hvd.rank()}.json")
        train(bad_rank=-1)
        hvd.stop_timeline()
        return Path(folder, "0.json").read_bytes() if hvd.rank() == 0 else b""

    with tempfile.TemporaryDirectory() as folder:
        timeline, _ = ranks.run(body, folder)
    assert b"ALLREDUCE" in timeline
