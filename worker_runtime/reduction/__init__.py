"""Gradient averaging between backward and step, for any optimizer.

The reducer puts an optimizer's parameters into buckets. Each bucket is one operation of the engine. The reduced
gradients replace the local ones.

Threads: backward's threads submit buckets; the thread that calls `synchronize()` or `step()` waits for them.
"""

from worker_runtime.reduction.reducer import GradientReducer
from worker_runtime.reduction.settings import Settings

__all__ = ["GradientReducer", "Settings"]
