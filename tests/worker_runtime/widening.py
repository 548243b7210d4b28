"""A parameter's values in a wider dtype, in which its gradient stays."""

from typing import Any

import torch


class Widen(torch.autograd.Function):
    """Converts to another dtype; unlike torch's conversion, its gradient keeps that dtype."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Convert as torch does."""
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - torch's signature
        """Leave it as it is."""
        return gradient, None
