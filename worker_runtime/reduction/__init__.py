"""Gradient averaging: what an optimizer's parameters need between backward and step, whatever the optimizer does.

In come parameters, and their gradients as backward computes them. Out come the averages, in their place. The parameters
are planned into buckets; each bucket is one operation of the engine.

Threads: backward's submit buckets; the caller's of `synchronize()` or `step()` waits for them.
"""

from worker_runtime.reduction.reducer import GradientReducer
from worker_runtime.reduction.settings import Settings

__all__ = ["GradientReducer", "Settings"]
