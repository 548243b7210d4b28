"""Time of a training step on two workers: without communication, DDP, this project, and Horovod where installed.

    .venv/bin/python benchmarks/step_time.py --json benchmarks/step_time.json

or inside a job, `hvdrun -np 2 python benchmarks/step_time.py`. All contenders train copies of one model in the same
processes and take turns step by step; at the end their parameters are compared. Each worker has one torch thread.
"""

import copy
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from horovod_peer import join_horovod
from jobs import Block, Case, is_worker, make_parser, run_cases, run_jobs
from targets import Target
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import worker_runtime.torch as hvd
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import CHECK_NAN, CHECK_REPLICAS

ALONE = "no communication"
DDP = "DDP"
VIEW = "DDP, bucket view"
STATIC = "hvdrun, static"
ELASTIC = "hvdrun, elastic"
CHECKED = "hvdrun, static, replicas compared each step"
LOOKED_AT = "hvdrun, static, gradients looked at"
HOROVOD = "Horovod"

BATCH = 4
_BATCHES = 8  # different ones, in turns
_RATE = 1e-3
_SIZE_OF_TARGETS = 2
# Of the length of the whole update: how far two ways may lie apart, since they add in different orders.
_TOLERANCE = 1e-3

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of `layers` square layers: in sequence with biases, or in parallel without.

    steps: the number of steps in a block.
    """

    name: str
    width: int
    layers: int
    steps: int
    is_parallel: bool = False

    def build(self) -> nn.Module:
        """Build the model, equal in all processes; activations keep their scale, so that none is denormal."""
        torch.manual_seed(0)
        if self.is_parallel:
            return _Parallel(nn.Linear(self.width, self.width, bias=False) for _ in range(self.layers))
        model = nn.Sequential()
        for _ in range(self.layers):
            linear = nn.Linear(self.width, self.width)
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            model.extend([linear, nn.ReLU()])
        return model


class _Parallel(nn.ModuleList):
    """Layers whose outputs are averaged."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(value) for layer in self]).mean(0)


SHAPES = {
    "large": Shape("25 M parameters in 120 tensors", 645, 60, 1),
    "small": Shape("10,200 parameters in 8 tensors", 50, 4, 20),
    "many": Shape("1,000 parameters of 1 KB", 16, 1000, 2, is_parallel=True),
}


class Trainers:
    """One model, of which each contender trains its own copy.

    Args:
        shape: of the model.
        device: where it lies.
    """

    def __init__(self, shape: Shape, device: str = "cpu") -> None:
        self._start = shape.build().to(device)
        self._models: dict[str, nn.Module] = {}
        generator = torch.Generator().manual_seed(1 + dist.get_rank())
        self._batches = [torch.randn(BATCH, shape.width, generator=generator).to(device) for _ in range(_BATCHES)]
        self.steps: dict[str, Step] = {}

    def add(self, name: str, prepare: Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]) -> None:
        """Add a contender: `prepare` returns the module that is called and the optimizer that steps."""
        model = copy.deepcopy(self._start)
        called, optimizer = prepare(model)
        batches = itertools.cycle(self._batches)

        def step() -> None:
            optimizer.zero_grad()
            loss = called(next(batches)).square().mean()
            loss.backward()
            optimizer.step()

        self._models[name] = model
        self.steps[name] = step

    def check(self) -> None:
        """Compare the parameters after training.

        Raises:
            RuntimeError: they differ between ranks, or from DDP's, or are unchanged.
        """
        start = _flatten(self._start)
        theirs = _flatten(self._models[DDP]) - start if DDP in self._models else None
        for name, model in self._models.items():
            if name == ALONE:
                continue
            own = _flatten(model)
            first = own.clone()
            dist.broadcast(first, src=0)
            if not torch.equal(own, first):
                raise RuntimeError(f"{name}: rank {dist.get_rank()} has other parameters than rank 0")
            update = own - start
            length = float(update.norm())
            if not 0 < length < float("inf"):
                raise RuntimeError(f"{name}: the parameters have moved by {length}")
            if theirs is not None and float((update - theirs).norm()) > _TOLERANCE * length:
                raise RuntimeError(f"{name}: the parameters differ from DDP's")


def make_ours(model: nn.Module, *, elastic: bool) -> torch.optim.Optimizer:
    """Our optimizer as in a static or an elastic job; only this function knows how to switch it."""
    engine = RUNTIME.engine
    policy, engine.is_elastic = engine.is_elastic, elastic  # the job's policy, which an optimizer reads once
    try:
        return hvd.DistributedOptimizer(make_sgd(model), named_parameters=model.named_parameters())
    finally:
        engine.is_elastic = policy


def make_checking(model: nn.Module, variable: str) -> torch.optim.Optimizer:
    """Our optimizer as in a static job with a check in each step, whose variable an optimizer reads once."""
    os.environ[variable] = "1"
    try:
        return make_ours(model, elastic=False)
    finally:
        del os.environ[variable]


def make_case(shape: Shape, trainers: Trainers) -> Case:
    """All contenders, and the targets, which are for two workers."""
    horovod = join_horovod()
    trainers.add(ALONE, lambda model: (model, make_sgd(model)))
    trainers.add(DDP, lambda model: (DistributedDataParallel(model), make_sgd(model)))
    trainers.add(VIEW, lambda model: (DistributedDataParallel(model, gradient_as_bucket_view=True), make_sgd(model)))
    trainers.add(STATIC, lambda model: (model, make_ours(model, elastic=False)))
    trainers.add(ELASTIC, lambda model: (model, make_ours(model, elastic=True)))
    trainers.add(CHECKED, lambda model: (model, make_checking(model, CHECK_REPLICAS)))
    trainers.add(LOOKED_AT, lambda model: (model, make_checking(model, CHECK_NAN)))
    if horovod is not None:
        trainers.add(
            HOROVOD,
            lambda model: (
                model,
                horovod.DistributedOptimizer(make_sgd(model), named_parameters=model.named_parameters()),
            ),
        )
    targets = {
        "large": [Target(STATIC, VIEW), Target(STATIC, DDP), Target(ELASTIC, DDP)],
        "small": [Target(STATIC, DDP, 0.5), Target(ELASTIC, DDP, 0.65)],
        "many": [Target(STATIC, DDP), Target(ELASTIC, DDP)],
    }
    size = dist.get_world_size()
    return Case(
        f"{shape.name}, batch {BATCH}, SGD, N={size}",
        {name: _repeat(step, shape.steps) for name, step in trainers.steps.items()},
        (DDP, VIEW),
        next(targets[name] for name in SHAPES if SHAPES[name] is shape) if size == _SIZE_OF_TARGETS else (),
        frozenset({STATIC, ELASTIC}),
    )


def main() -> int:
    """Start the job, or take part in it."""
    parser = make_parser(__doc__, [_SIZE_OF_TARGETS])
    parser.add_argument("--model", choices=[*SHAPES, "all"], default="all")
    arguments = parser.parse_args()
    if not is_worker():
        return run_jobs(Path(__file__).resolve(), arguments.np, arguments.json)
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    shapes = list(SHAPES.values()) if arguments.model == "all" else [SHAPES[arguments.model]]
    all_trainers = [Trainers(shape) for shape in shapes]
    run_cases([make_case(shape, trainers) for shape, trainers in zip(shapes, all_trainers, strict=True)], arguments)
    if arguments.profile is None:
        for trainers in all_trainers:
            trainers.check()
    dist.destroy_process_group()
    return 0


def make_sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of each contender."""
    return torch.optim.SGD(model.parameters(), lr=_RATE)


def _repeat(step: Step, count: int) -> Block:
    def block() -> Sequence[float]:
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        return seconds

    return block


def _flatten(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


if __name__ == "__main__":
    sys.exit(main())
