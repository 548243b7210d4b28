"""What shows that ranks train different models: the sum and the norm of the parameters of their optimizers.

Replicas on processors of different kinds may differ in the last bits, so the numbers are compared, not their bits.
"""

import math
import struct
from collections.abc import Iterable
from typing import Any

import torch

_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_FORM = struct.Struct("<2d")
_TOLERANCE = 1e-3  # of the norm; models that begin with other random numbers differ by about the norm


def measure(values: Iterable[Any]) -> bytes:
    """The numbers of the parameters of the optimizers among these values; b"" where there are none."""
    groups = [group for value in values if isinstance(value, torch.optim.Optimizer) for group in value.param_groups]
    parameters = [each.detach() for group in groups for each in group["params"] if _is_usual(each)]
    if not parameters:
        return b""
    sums = [each.sum(dtype=torch.float64).item() for each in parameters]
    norms = [torch.linalg.vector_norm(each, dtype=torch.float64).item() for each in parameters]
    return _FORM.pack(math.fsum(sums), math.hypot(*norms))


def are_different(one: bytes, other: bytes) -> bool:
    """Whether two measures are of different models; False where one is unknown."""
    if not one or not other:
        return False
    mine, theirs = (_FORM.unpack(each.ljust(_FORM.size, b"\0")) for each in (one, other))
    limit = _TOLERANCE * max(mine[1], theirs[1])
    return any(abs(a - b) > limit for a, b in zip(mine, theirs, strict=True))


def _is_usual(value: torch.Tensor) -> bool:
    """Whether torch can sum it: not where it is of a class of its own, of 8 bits, or without data."""
    is_plain = type(value) in _TYPES and value.layout is torch.strided
    return is_plain and value.dtype in _DTYPES and not value.is_meta
