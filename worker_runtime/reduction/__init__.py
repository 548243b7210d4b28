"""Gradient averaging: what an optimizer's parameters need between backward and step, whatever the optimizer does.

`GradientReducer` is the way in; the other modules are its parts, one noun each.
"""

from worker_runtime.reduction.reducer import GradientReducer
from worker_runtime.reduction.settings import Settings

__all__ = ["GradientReducer", "Settings"]
