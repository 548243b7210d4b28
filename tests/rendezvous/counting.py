"""Counts what work takes: the same on a busy machine as on a quiet one."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def count_steps(work: Callable[[], object]) -> int:
    """How many lines of Python this runs in this thread, each pass of a loop by itself, and how many calls into C."""
    steps = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        nonlocal steps
        steps += event == "line"
        return trace

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event == "c_call"

    former_trace, former_profile = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.settrace(former_trace)
        sys.setprofile(former_profile)
    return steps
