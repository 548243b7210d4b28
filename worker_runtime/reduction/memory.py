"""The memory of a bucket: flat tensors that travel, and the part of them that is each parameter's gradient.

A gradient that a user sees is such a part. So memory is used again in the next step only if nobody holds on to it: a
program that has kept `p.grad`, or a view of it, keeps its values, as it does in plain torch.
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from worker_runtime.reduction.layout import find_strides


@dataclass(frozen=True, slots=True)
class Part:
    """Where one parameter's gradient lies.

    dtype: as what it travels.
    """

    parameter: torch.Tensor
    dtype: torch.dtype


class Memory:
    """Flat tensors, one for each kind (dtype and device) of gradient, and their views.

    flats: what travels.
    views: of each part, in its parameter's shape.
    """

    __slots__ = ("_holders", "_parts", "_references", "flats", "views")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.flats, self.views = _allocate(parts)
        self._references = [sys.getrefcount(view) for view in self.views]  # as long as nobody else has one
        self._holders = [_count_holders(flat) for flat in self.flats]

    @property
    def is_held(self) -> bool:
        """Whether somebody else would see it change: a gradient in its old place in a parameter does not count."""
        references = [sys.getrefcount(view) for view in self.views]
        if references != self._references:
            for before, now, view, part in zip(self._references, references, self.views, self._parts, strict=True):
                if now > before and part.parameter.grad is not view:
                    return True
        return any(_count_holders(flat) > before for flat, before in zip(self.flats, self._holders, strict=True))

    @property
    def holds_gradients(self) -> bool:
        """Whether a parameter's present gradient lies in it."""
        return any(part.parameter.grad is view for part, view in zip(self._parts, self.views, strict=True))


def _allocate(parts: Sequence[Part]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The flat tensors, and the view of each part."""
    kinds: dict[Hashable, list[int]] = {}
    for index, part in enumerate(parts):
        kinds.setdefault((part.dtype, part.parameter.device), []).append(index)
    flats: list[torch.Tensor] = []
    views: dict[int, torch.Tensor] = {}
    for indices in kinds.values():
        parameters = [parts[index].parameter for index in indices]
        offsets = list(accumulate((parameter.numel() for parameter in parameters), initial=0))
        flat = torch.zeros(offsets[-1], dtype=parts[indices[0]].dtype, device=parameters[0].device)
        flats.append(flat)
        for index, parameter, offset in zip(indices, parameters, offsets, strict=False):
            views[index] = flat.as_strided(parameter.shape, find_strides(parameter), offset)
    return flats, [views[index] for index in range(len(parts))]


def _count_holders(flat: torch.Tensor) -> int:
    """How many tensors and other objects share its storage."""
    return torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # noqa: SLF001 - torch's only way to tell
