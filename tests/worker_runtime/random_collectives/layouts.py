"""Tensors that lie in memory in other ways than row by row."""

from collections.abc import Callable

import torch

_GUARD = 0x5A  # fills the memory between and beside the elements

Check = Callable[[], None]


def lay_out(values: torch.Tensor, layout: str) -> tuple[torch.Tensor, Check]:
    """The same values in another layout, and a check that nothing beside them was overwritten."""
    if layout == "transposed" and values.dim() > 1:
        return values.transpose(0, -1).contiguous().transpose(0, -1), lambda: None
    if layout == "expanded" and values.dim() and values.shape[0]:
        return values[:1].clone().expand(values.shape), lambda: None
    if layout == "strided" and values.dim() and values.shape[-1]:
        memory = _make_memory(values, 2 * values.numel()).view(*values.shape[:-1], 2 * values.shape[-1])
        return memory[..., ::2].copy_(values), lambda: _check(memory[..., 1::2])
    if layout == "offset":
        memory = _make_memory(values, values.numel() + 2)
        inner = memory[1:-1].view(values.shape)
        return inner.copy_(values), lambda: _check(torch.stack([memory[0], memory[-1]]))
    return values.clone(), lambda: None


def _make_memory(values: torch.Tensor, count: int) -> torch.Tensor:
    memory = torch.empty(count, dtype=values.dtype)
    memory.view(torch.uint8).fill_(1 if values.dtype == torch.bool else _GUARD)
    return memory


def _check(between: torch.Tensor) -> None:
    expected = 1 if between.dtype == torch.bool else _GUARD
    assert bool(
        (torch.empty(between.shape, dtype=between.dtype).copy_(between).view(-1).view(torch.uint8) == expected).all()
    ), "a neighbour was overwritten"
