"""Where the elements of a gradient lie within its part of a bucket: in the order of its parameter's own memory.

A parameter in another memory format (channels_last) then has a gradient in that format, which is what optimizers are
fastest with, and both copies run through memory in order. All ranks must have it so: it is part of the description
that they compare.
"""

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
