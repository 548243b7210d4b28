"""Flipped bits, as faulty memory makes them."""

import torch


def flip_bit(tensor: torch.Tensor, place: int) -> None:
    """Flip the bit at this place of a dense tensor's values, in the order of its elements."""
    flat = tensor.detach().contiguous().reshape(-1)
    content = flat.view(torch.uint8)
    content[place // 8] ^= 1 << place % 8
    tensor.detach().copy_(flat.view(tensor.shape))
