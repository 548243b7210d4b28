"""What the workers of the recovery tests train: small networks in float64, whose losses are functions of samples alone.

So one process that knows which samples each step has used can make every step again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import worker_runtime.torch as hvd

SAMPLES = 240  # of the data set
WORDS = 30
BATCH = 4
RATE, SHORTENING, EVERY = 0.1, 0.5, 5  # the learning rate, and by how much it shrinks every so many steps
MOMENTUM = 0.5
LONGEST = 0.3  # to which norm gradients are clipped
SCALE = 4.0  # of the scaler, for ever

OPS = {"sum": hvd.Sum, "product": hvd.Product}

_NARROW, _WIDE = 8, 3000  # a narrow network's gradients travel inside requests, a wide one's through gloo


@dataclass(frozen=True, slots=True)
class Part:
    """A network that has an optimizer of its own.

    is_adasum: its optimizer's steps are combined, and not gradients.
    has_momentum: torch's momentum.
    """

    network: "Network"
    is_adasum: bool
    has_momentum: bool

    def make_optimizer(self) -> torch.optim.SGD:
        """A plain one."""
        return torch.optim.SGD(self.network.parameters(), lr=RATE, momentum=MOMENTUM if self.has_momentum else 0.0)


class Network(nn.Module):
    """Words to a vector, through two layers."""

    def __init__(self, features: frozenset[str]) -> None:
        super().__init__()
        width = _WIDE if "wide" in features else _NARROW
        self.words = nn.EmbeddingBag(WORDS, 6, mode="sum", sparse="sparse" in features, dtype=torch.float64)
        self.first = nn.Linear(6, width, dtype=torch.float64)
        kind = hvd.SyncBatchNorm if "sync" in features else nn.BatchNorm1d
        self.norm = kind(width, dtype=torch.float64) if features & {"norm", "sync"} else nn.Identity()
        self.last = nn.Linear(width, 4, dtype=torch.float64)
        self._share = _NARROW / width  # so that steps of a wide network are not too long for it

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """From (n, 3) words to (n, 4)."""
        return self._share * self.last(torch.tanh(self.norm(self.first(self.words(words)))))  # type: ignore[no-any-return]  # torch's modules return Any

    def list_clipped(self) -> list[torch.Tensor]:
        """The parameters whose gradients are never sparse."""
        return [parameter for name, parameter in self.named_parameters() if not name.startswith("words.")]


class Recipe:
    """A training.

    Args:
        words: what it has: "wide", "norm", "sparse", "clip", "schedule", "accumulate" (two passes for one step), "two"
            (another optimizer with a network of its own), "gan" (the same, and its loss has gradients for the first
            network, which are discarded), "adasum" (one more, of that kind), "scaler", "closure" (in which the loss
            is computed), "sync" (a norm over all ranks, which cannot be made again), "sets", "join", "sum" or "product"
            (and not the average, of gradients), "predivide" (the average), "groups" (of gradients), "dense" (sparse
            gradients are reduced as dense ones), "step" (only that, nothing before it), "synchronize" (also where the
            scaler does it).
        device: where networks and samples lie.
    """

    def __init__(self, words: str, device: str = "cpu") -> None:
        self.features = frozenset(words.split(",")) - {""}
        self.device = device
        self.op = next((op for name, op in OPS.items() if name in self.features), hvd.Average)
        self.passes = 2 if "accumulate" in self.features else 1
        torch.manual_seed(1)
        extra = [kind for kind in ("two", "gan", "adasum") if kind in self.features]
        self.parts = [
            Part(Network(self.features).to(device), is_adasum=False, has_momentum="sparse" not in self.features),
            *(Part(Network(frozenset()).to(device), is_adasum=kind == "adasum", has_momentum=True) for kind in extra),
        ]
        draw = torch.Generator().manual_seed(2)
        self._inputs = torch.randint(WORDS, (SAMPLES, 3), generator=draw).to(device)
        self._targets = torch.randn(SAMPLES, 4, generator=draw, dtype=torch.float64).to(device)

    def draw(self, member: int, step: int) -> list[list[int]]:
        """The samples of a member's step, for each pass: as if at random, but always the same."""
        draw = torch.Generator().manual_seed(member * 1000 + step)
        return [torch.randint(SAMPLES, (BATCH,), generator=draw).tolist() for _ in range(self.passes)]

    def lose(self, part: Part, samples: Sequence[int]) -> torch.Tensor:
        """The loss of some samples; a single one, of which the norm knows no spread, counts as two."""
        samples = [*samples, *samples] if len(samples) == 1 else samples
        made = part.network(self._inputs[samples])
        if "gan" in self.features and part is self.parts[1]:
            made = made * self.parts[0].network(self._inputs[samples])
        return functional.mse_loss(made, self._targets[samples])

    def find_rate(self, step: int) -> float:
        """The learning rate of a step."""
        return RATE * SHORTENING ** (step // EVERY) if "schedule" in self.features else RATE

    def list_parameters(self) -> Iterator[torch.Tensor]:
        """Of all networks."""
        for part in self.parts:
            yield from part.network.parameters()
