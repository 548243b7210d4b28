"""The memory of a bucket: flat tensors that travel, and the part of them that is each parameter's gradient.

A gradient that a user sees shares such a part, as a tensor of its own: what a program does with that tensor (gives it
other memory, another shape, lets it require gradients) happens to it alone, as in plain torch, where each step's
gradient is new. So whether a gradient lies in its part is looked up each time, in the tensor itself.

Memory is used again in the next step only if nobody holds on to it: a program that has kept `p.grad`, or a view of it,
keeps its values, as it does in plain torch.

The elements of a gradient lie in the order of its parameter's own memory. A parameter in another memory format
(channels_last) then has a gradient in that format, which is what optimizers are fastest with, and both copies run
through memory in order. All ranks must have it so: it is part of the description that they compare.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch


def find_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The parameter's own strides where its elements fill its memory without gaps; else those of row-major order."""
    if is_dense(parameter):
        return parameter.stride()
    strides = []
    step = 1
    for extent in reversed(parameter.shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_dense(tensor: torch.Tensor) -> bool:
    """Its elements lie one after the other in some order of the dimensions, each at a place of its own."""
    if tensor.is_contiguous():
        return True
    step = 1
    for stride, extent in sorted(
        (stride, extent) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1
    ):
        if stride != step:
            return False
        step *= extent
    return True


def describe_order(parameter: torch.Tensor) -> tuple[int, ...]:
    """In which order the elements travel, in numbers that are alike where the order is."""
    strides = find_strides(parameter)
    return tuple(stride for stride, extent in zip(strides, parameter.shape, strict=True) if extent > 1)


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
    views: of each part, in its parameter's shape. They are never handed to a program.
    """

    __slots__ = ("_own_holders", "_parts", "flats", "views")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.flats, self.views = _allocate(parts)
        self._own_holders = self._count_holders()

    @property
    def is_held(self) -> bool:
        """Whether somebody else would see it change: a gradient in its place in a parameter does not count."""
        others = self._count_holders() - self._own_holders
        return others > 0 and others > self._count_gradients()

    @property
    def holds_gradients(self) -> bool:
        """Whether a parameter's present gradient lies in it."""
        return self._count_holders() > self._own_holders and self._count_gradients() > 0

    def show(self, place: int) -> torch.Tensor:
        """A tensor for the user that shares the part at `place`. It is new, and no view as autograd knows them."""
        return self.views[place].data

    def _count_holders(self) -> int:
        """How many tensors and other objects share the flat tensors' memory."""
        return sum(
            torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # noqa: SLF001 - torch's only way to tell
            for flat in self.flats
        )

    def _count_gradients(self) -> int:
        return sum(lies_in(part.parameter.grad, view) for part, view in zip(self._parts, self.views, strict=True))


def lies_in(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Whether a gradient has the elements of `view`, in the same memory and order."""
    return (
        gradient is not None
        and gradient.layout is torch.strided
        and gradient.dtype is view.dtype
        and gradient.is_set_to(view)
        and gradient.is_conj() == view.is_conj()
        and gradient.is_neg() == view.is_neg()
    )


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
