"""An optimizer of a random training."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.worker_runtime.random_trainings.programs import Wrap

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.05),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-3),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, eps=1e-3),
    "LBFGS": functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),  # with closures
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.05, eps=1e-3),
}


class Flat:
    """A compressor that sends a gradient in one dimension."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
        """The elements, and their shape."""
        return tensor.detach().reshape(-1), tensor.shape

    @staticmethod
    def decompress(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """In their shape."""
        return tensor.reshape(shape)


@dataclass
class Wrapped:
    """An optimizer of the program, and how many backward passes have come since its gradients were averaged."""

    optimizer: Any
    wrap: Wrap
    taken: frozenset[str]  # parameters that were not frozen
    passes: int = 0
    has_dropped: bool = False  # some passes, by the model, of which the optimizer does not know
    is_uneven: bool = False  # some ranks have gradients that others have not: they may not be discarded
    averaged_by: str = ""  # "synchronize()" or "scaler", where no pass, step or clearing by itself has come since

    def begin(self) -> None:
        """Begin anew: the gradients of the optimizer were averaged, or the optimizer has cleared them."""
        self.passes, self.has_dropped, self.is_uneven, self.averaged_by = 0, False, False, ""

    @property
    def is_local(self) -> bool:
        """Gradients stay on their ranks: steps are combined."""
        return self.wrap.op == "Adasum"
