"""A training with losses made again by one process, from the record of who took part in each step."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tests.system.recording import Samples, Step
from tests.system.recovery_scripts.recipe import LONGEST, SCALE, Part, Recipe

TOLERANCE = 1e-12  # all is computed in float64, and only the order of the additions differs


class Replay:
    """Makes the steps of a recipe.

    Args:
        recipe: which the workers have trained.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._optimizers = [part.make_optimizer() for part in recipe.parts]
        self._local: dict[tuple[int, int], torch.optim.SGD] = {}  # by part and member: for Adasum

    def run(self, steps: Iterable[Step]) -> list[torch.Tensor]:
        """Make the steps; the parameters after them."""
        for step in steps:
            for number, members in enumerate(step.members):
                part = self._recipe.parts[number]
                if part.is_adasum:
                    self._combine(number, part, [(member, step.samples[member]) for member in members], step.number)
                else:
                    self._average(number, part, [step.samples[member] for member in members], step.number)
        return list(self._recipe.list_parameters())

    def _average(self, number: int, part: Part, samples: list[Samples], step: int) -> None:
        """One step with the average of all gradients, or what the recipe has instead."""
        gradients = [self._differentiate(part, own) for own in samples]
        for parameter, *parts in zip(part.network.parameters(), *gradients, strict=True):
            parameter.grad = self._reduce(torch.stack(parts))
        if "clip" in self._recipe.features:
            nn.utils.clip_grad_norm_(part.network.list_clipped(), LONGEST)
        self._step(self._optimizers[number], step)

    def _reduce(self, parts: torch.Tensor) -> torch.Tensor:
        """The members' gradients; a product has all their scales, and loses one."""
        features = self._recipe.features
        if "product" in features:
            return parts.prod(0) * (SCALE ** (len(parts) - 1) if "scaler" in features else 1.0)
        return parts.sum(0) if "sum" in features else parts.mean(0)

    def _combine(self, number: int, part: Part, samples: list[tuple[int, Samples]], step: int) -> None:
        """A step of each member, and the steps combined."""
        parameters = list(part.network.parameters())
        starts = [parameter.detach().clone() for parameter in parameters]
        deltas = []
        for member, own in samples:
            gradients = self._differentiate(part, own)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            if (number, member) not in self._local:
                self._local[number, member] = part.make_optimizer()
            self._step(self._local[number, member], step)
            moved = [(parameter - start).detach().numpy() for parameter, start in zip(parameters, starts, strict=True)]
            deltas.append(moved)
            with torch.no_grad():
                for parameter, start in zip(parameters, starts, strict=True):
                    parameter.copy_(start)
        with torch.no_grad():
            for parameter, *moves in zip(parameters, *deltas, strict=True):
                parameter.add_(torch.from_numpy(combine_by_adasum(moves)))

    def _differentiate(self, part: Part, samples: Samples) -> list[torch.Tensor]:
        """One member's gradients, summed over its passes, dense."""
        part.network.zero_grad()
        for some in samples:
            self._recipe.lose(part, some).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        gradients = [parameter.grad for parameter in part.network.parameters()]
        return [gradient.to_dense().clone() for gradient in gradients if gradient is not None]

    def _step(self, optimizer: torch.optim.SGD, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self._recipe.find_rate(step)
        optimizer.step()


def find_distance(recipe: Recipe, steps: Iterable[Step], parameters: list[torch.Tensor]) -> float:
    """How far parameters are from those that one process comes to with the same steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other far longer than the small sums take
    try:
        replayed = Replay(recipe).run(steps)
    finally:
        torch.set_num_threads(threads)
    return max((ours - theirs).abs().max().item() for ours, theirs in zip(replayed, parameters, strict=True))


def combine_by_adasum(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """As in its paper: pairs at distance 1, 2, 4...; first, ranks above the greatest power of two go to lower ones."""
    power = 1 << (len(parts).bit_length() - 1)
    for surplus in range(power, len(parts)):
        parts[surplus - power] = combine_two(parts[surplus - power], parts[surplus])
    parts = parts[:power]
    while len(parts) > 1:
        parts = [combine_two(one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def combine_two(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """What both have in common counts once."""
    dot, own, others = (float((a * b).sum()) for a, b in ((one, other), (one, one), (other, other)))
    return (1 - dot / (2 * own)) * one + (1 - dot / (2 * others)) * other
