"""Keeps torch.compile from tracing the runtime: a compiled function has a graph break where it calls the runtime.

A traced function would run only once, with fake tensors. `torch.compiler.disable` prevents tracing, but imports the
whole compiler, which takes two seconds and which most programs never need. `untraced` does the same for a function
without that import.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_REASON = (
    "it communicates outside of the graph: remove fullgraph=True, or call hvd.allreduce, hvd.allgather, "
    "hvd.broadcast, hvd.reducescatter or hvd.SyncBatchNorm, which are operations of the graph"
)


def untraced(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Keep torch.compile from tracing a function and the functions that it calls; returns the function itself.

    Args:
        function: a Python function; apply this as the outermost decorator.
    """
    if isinstance(function, FunctionType):
        marked: Any = function
        marked._torchdynamo_disable = True  # read when the function is inlined  # noqa: SLF001 - the compiler's names
        marked._torchdynamo_disable_msg = _REASON  # noqa: SLF001 - the compiler's names
        marked._torchdynamo_disable_recursive = True  # noqa: SLF001 - the compiler's names
        frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001 - torch has no public way
        skip = frames._FrameAction.SKIP  # noqa: SLF001 - torch has no public way
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001 - torch has no public way
    return function
