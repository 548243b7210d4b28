"""The compiler leaves collectives alone, and is not loaded for that."""

import logging
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.collectives.untraced import untraced


def test_the_api_does_not_load_the_compiler() -> None:
    script = "import sys, worker_runtime.torch; print('torch._dynamo' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "False\n"


def test_an_untraced_function_is_the_function_itself() -> None:
    def function() -> int:
        return 3

    assert untraced(function) is function
    assert untraced(len) is len  # type: ignore[comparison-overlap]  # not of Python code: left alone
    assert function() == 3


def step(x: torch.Tensor) -> torch.Tensor:
    """Collectives of all kinds, with computation between."""
    handle = hvd.allreduce_async(x * 2, op=hvd.Sum)
    y = hvd.allgather(x.sin()[:1]).sum() + hvd.broadcast(x, 0) + hvd.alltoall(x) + hvd.reducescatter(x).sum()
    hvd.barrier()
    (z,) = hvd.grouped_allreduce([y.cos()])
    hvd.allreduce_(z)
    note = hvd.broadcast_object({"scale": 2.0})
    return hvd.synchronize(handle) + z * note["scale"] + hvd.rank() + hvd.size()


class Noise(logging.Handler):
    """What the compiler says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.said.append(record.getMessage())


def run_step() -> bool:
    """Several calls, each with values of its own."""
    compiled = torch.compile(step, backend="aot_eager")
    inputs = [torch.arange(4.0) * factor + hvd.rank() for factor in (1.0, 2.0, 3.0)]
    return all(torch.equal(compiled(x), step(x)) for x in inputs)


def run_training() -> bool:
    """A whole step of a distributed optimizer, compiled and not."""
    ends = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

        def train(x: torch.Tensor, use: tuple[torch.nn.Module, torch.optim.Optimizer] = (model, optimizer)) -> None:
            own, its_optimizer = use
            its_optimizer.zero_grad()
            own(x).square().sum().backward()
            its_optimizer.step()

        run = torch.compile(train, backend="aot_eager") if is_compiled else train
        for count in range(5):
            run(torch.ones(2, 3) * (count + hvd.rank()) / 10)
        ends.append(model.weight.detach())
    return torch.allclose(*ends)


@pytest.mark.parametrize("run", [run_step, run_training])
def test_compiled_programs_communicate_without_a_word(ranks: RankPool, run: Callable[[], bool]) -> None:
    """Warnings are errors in the ranks."""

    def body() -> object:
        noise = Noise()
        logging.getLogger("torch._dynamo").addHandler(noise)
        try:
            return run(), noise.said
        finally:
            logging.getLogger("torch._dynamo").removeHandler(noise)
            torch.compiler.reset()

    assert ranks.run(body) == [(True, [])] * 2
