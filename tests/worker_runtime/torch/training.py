"""A small network to train."""

import torch


def make_model() -> torch.nn.Module:
    """The same on all ranks."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
