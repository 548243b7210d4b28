"""Where a rank was when it left a test: the line that raised, or the line at which the test returned."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.relpath(self.file)}:{self.line}"


class Call:
    """The call of a test function.

    place: where it returned; None while it has not, or where it is no Python function.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        innermost = inspect.unwrap(function)
        self._code: CodeType | None = getattr(innermost, "__code__", None)
        self.place: Place | None = None

    def run(self, arguments: Mapping[str, Any]) -> None:
        """Call it."""
        frames: list[FrameType] = []
        with self._catch_frame(frames):
            self._function(**arguments)
        if frames:
            self.place = Place(frames[0].f_code.co_filename, frames[0].f_lineno)

    def find_place(self, error: BaseException) -> Place | None:
        """The innermost line of the test's own file that an exception has passed, or the innermost of all."""
        steps = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        own = [step for step in steps if self._code is not None and step[0] == self._code.co_filename]
        found = (own or steps)[-1:]
        return Place(*found[0]) if found else None

    @contextmanager
    def _catch_frame(self, frames: list[FrameType]) -> Iterator[None]:
        """Put the function's frame into the list: it still knows its line after it has returned.

        The profiler's hook is used for that one call, and not beyond it: it would slow the test down.
        """
        former = sys.getprofile()

        def notice(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code is self._code:
                frames.append(frame)
                sys.setprofile(former)

        sys.setprofile(notice)
        try:
            yield
        finally:
            sys.setprofile(former)
