"""Random trainings: which rank has which gradients, in which order, what is discarded, and what should come out."""

from dataclasses import dataclass
from random import Random

import torch

from tests.worker_runtime.reduction.gradients import make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction


@dataclass(frozen=True, slots=True)
class Step:
    """One step of all ranks.

    discards: gradients of another loss come first, and are discarded.
    clears: what becomes of the gradients afterwards: "none", "zero" or "keep".
    ready: of each rank, the parameters that get gradients, in order.
    metric_first: another operation comes before the step, or after it.
    """

    discards: bool
    clears: str
    ready: list[list[int]]
    metric_first: bool


@dataclass(frozen=True, slots=True)
class Program:
    """What all ranks do."""

    size: int
    count: int
    bounds: tuple[int, int]
    is_elastic: bool
    steps: list[Step]

    def play(self, engine: ThreadEngine) -> list[list[float]]:
        """The gradient of each parameter after each step, on one rank."""
        parameters = make_parameters(self.count)
        reducer = make_reducer(parameters, engine, bounds=self.bounds)
        seen = []
        for number, step in enumerate(self.steps):
            mine = step.ready[engine.rank]
            if step.discards:
                for index in mine:
                    (parameters[index] * 1000.0).sum().backward()
                reducer.discard()
                _clear(parameters, "none")
            for index in mine:
                (parameters[index] * (engine.rank + number)).sum().backward()
            calls = [reducer.synchronize, lambda: engine.run(make_metric(engine))]
            for call in reversed(calls) if step.metric_first else calls:
                call()
            seen.append([parameter.grad[0].item() for parameter in parameters])
            _clear(parameters, step.clears)
        return seen

    def expect(self) -> list[list[float]]:
        """What `play` should give on every rank."""
        before, expected = [0.0] * self.count, []
        for number, step in enumerate(self.steps):
            if step.discards:
                before = [0.0] * self.count
            for index in range(self.count):
                ranks = [rank for rank in range(self.size) if index in step.ready[rank]]
                before[index] += sum(rank + number for rank in ranks) / self.size
            expected.append(list(before))
            if step.clears != "keep":
                before = [0.0] * self.count
        return expected


def make_metric(engine: ThreadEngine, name: str = "metric", process_set: int = 0) -> Allreduce:
    """An operation that has nothing to do with gradients."""
    members = engine.find_members(process_set, name)
    return Allreduce([torch.ones(1)], Combination(Reduction.SUM), members, f"allreduce.{name}")


def make_program(seed: int) -> Program:
    """Another one for each seed."""
    random = Random(seed)  # noqa: S311 - no secret
    size, count = random.choice([2, 3, 4]), random.randint(1, 6)
    is_elastic = random.random() < 0.5
    steps = []
    for _ in range(12):
        ready = [random.sample(range(count), random.choice([count, random.randint(1, count)])) for _ in range(size)]
        clears = random.choice(["none", "none", "zero", "keep"])
        steps.append(Step(random.random() < 0.2, clears, ready, random.random() < 0.5))
    return Program(size, count, random.choice([(16, 16), (16, 40), (1000, 1000)]), is_elastic, steps)


def _clear(parameters: list[torch.Tensor], how: str) -> None:
    for parameter in parameters:
        if how == "none":
            parameter.grad = None
        elif how == "zero":
            parameter.grad.zero_()
