"""The generators of random numbers of a process: Python's, NumPy's and torch's, as they stand."""

import random
import sys
from typing import Any

import torch

_NUMPY = "numpy"


def take() -> dict[str, Any]:
    """Where they stand: NumPy's where it is imported, torch's of the CPU, and of the present GPU where it is used."""
    taken: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if _NUMPY in sys.modules:
        taken[_NUMPY] = sys.modules[_NUMPY].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
        taken["cuda"] = torch.cuda.get_rng_state()
    return taken


def put_back(taken: dict[str, Any]) -> None:
    """Let the generators go on from there, as far as this process has them."""
    random.setstate(taken["python"])
    torch.set_rng_state(taken["torch"])
    if _NUMPY in taken and _NUMPY in sys.modules:
        sys.modules[_NUMPY].random.set_state(taken[_NUMPY])
    if "cuda" in taken and torch.cuda.is_available():
        torch.cuda.set_rng_state(taken["cuda"])
