"""The gradients of all ranks, in the one process that has the batches of all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Average": lambda parts: parts.mean(0),
    "Sum": lambda parts: parts.sum(0),
    "Min": lambda parts: parts.amin(0),
    "Max": lambda parts: parts.amax(0),
    "Product": lambda parts: parts.prod(0),
}

Parts = Sequence[torch.Tensor | None]


class Gradients:
    """What each rank has in `p.grad`; whatever else has been written there or cleared is the same on all ranks.

    Args:
        model: its parameters by name.
        size: how many ranks.
    """

    def __init__(self, model: Mapping[str, torch.nn.Parameter], size: int) -> None:
        self._model = model
        self._size = size
        self._known: dict[str, tuple[torch.Tensor, int, Parts]] = {}

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """The parameters have this rank's gradients."""
        own = {name: self.list_parts(name) for name in self._model}
        for name, parameter in self._model.items():
            part = own[name][rank]
            parameter.grad = None if part is None else part.clone()
        try:
            yield
        finally:
            for name, parameter in self._model.items():
                self.write(name, [*own[name][:rank], parameter.grad, *own[name][rank + 1 :]])

    def write(self, name: str, parts: Parts) -> None:
        """Each rank has its part now; the parameter shows a gradient as long as one of them has any."""
        parameter = self._model[name]
        parameter.grad = next((part.clone() for part in parts if part is not None), None)
        if parameter.grad is not None:
            self._known[name] = (parameter.grad, parameter.grad._version, parts)

    def add(self, name: str, parts: Parts) -> None:
        """Each rank's part comes to what it has."""
        pairs = zip(self.list_parts(name), parts, strict=True)
        self.write(name, [new if old is None else old if new is None else old + new for old, new in pairs])

    def zero(self, name: str) -> None:
        """Each rank has zeros, where it has a gradient."""
        parts = self.list_parts(name)
        self.write(name, [None if part is None else torch.zeros_like(part) for part in parts])

    def reduce(self, name: str, operation: str) -> None:
        """As the ranks do together: a gradient that one lacks counts as zeros."""
        parameter = self._model[name]
        zeros = torch.zeros_like(parameter, dtype=torch.float64)
        parts = [zeros if part is None else part for part in self.list_parts(name)]
        parameter.grad = REDUCE[operation](torch.stack(parts))

    def list_parts(self, name: str) -> Parts:
        """Of each rank."""
        now = self._model[name].grad
        then, version, parts = self._known.get(name, (None, 0, ()))
        return parts if now is not None and now is then and now._version == version else [now] * self._size
