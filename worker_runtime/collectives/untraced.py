"""Keeping torch.compile out of the runtime: a compiled function is cut in two where it calls what is no operation.

What the compiler traces it runs once, with stand-ins, and never again; a collective is asked for, counted and awaited
by every call. `torch.compiler.disable` would say so, but it imports the whole compiler, which takes two seconds and
most programs never need. What it does for a function is done here by the same means, which torch has loaded anyway.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_REASON = (
    "it communicates outside of the graph: leave out fullgraph=True, or call hvd.allreduce, hvd.allgather, "
    "hvd.broadcast, hvd.reducescatter or hvd.SyncBatchNorm, which are operations of the graph"
)


def untraced(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Have torch.compile neither trace a function nor whatever it calls; returns the function itself.

    Args:
        function: of Python code; with a decorator on it, the outermost.
    """
    if isinstance(function, FunctionType):
        marked: Any = function
        marked._torchdynamo_disable = True  # read when it is inlined  # noqa: SLF001 - the compiler's names
        marked._torchdynamo_disable_msg = _REASON  # noqa: SLF001 - as above
        marked._torchdynamo_disable_recursive = True  # noqa: SLF001 - as above
        frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001 - read when it is run
        if hasattr(frames, "set_code_exec_strategy"):  # newer than torch 2.6
            skip = frames._FrameAction.SKIP  # noqa: SLF001 - as above
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001 - as above
    return function
