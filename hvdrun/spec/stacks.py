"""Where the main thread of a worker is: a plain value, which travels from its agent as JSON."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import rendezvous

_ROOT = Path(rendezvous.__file__).resolve().parent.parent
_RUNTIME = ("worker_runtime", "rendezvous", "hvdrun")
_PYTHON = re.compile(r"/lib(64)?/python3(\.\d+t?)?/|/python3[\d.t]*\.zip/|^<frozen ")
_PACKAGES = re.compile(r"/(site|dist)-packages/")
_MOST_CHARACTERS = 100  # of a line of the program


@dataclass(frozen=True, slots=True)
class Frame:
    """One call.

    file, line, function: where the code is.
    text: the source line; "" where it is not known.
    is_native: the code is C or C++; then the file is its library, and the line is 0.
    """

    file: str
    line: int
    function: str
    text: str = ""
    is_native: bool = False

    @property
    def is_runtime(self) -> bool:
        """The frame is of hvdrun's own code."""
        of_packages = _PACKAGES.split(self.file)[-1]
        return any(self.file.startswith(f"{_ROOT / name}/") or of_packages.startswith(f"{name}/") for name in _RUNTIME)

    @property
    def is_python(self) -> bool:
        """The frame is of Python's own library."""
        return bool(_PYTHON.search(self.file)) and not _PACKAGES.search(self.file)

    @property
    def is_program(self) -> bool:
        """The frame is of the user's own Python code: not of Python, an installed package, or hvdrun."""
        return not (self.is_native or self.is_python or _PACKAGES.search(self.file) or self.is_runtime)

    def __str__(self) -> str:
        """The frame in a few words: `train.py:88 in load: q.get()`, or `pthread_cond_wait in libc.so.6`."""
        if self.is_native:
            return f"{self.function} in {Path(self.file).name}"
        text = self.text
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[: _MOST_CHARACTERS - 1]}…"
        place = f"{Path(self.file).name}:{self.line} in {self.function}"
        if text:
            return f"{place}: {text}"
        return place


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a process is.

    pid: the process.
    frames: the frames of its main thread, the innermost first; empty where they are not known.
    obstacle: why the frames are not known; "" if they are.
    remark: what else is to be said.
    """

    pid: int
    frames: tuple[Frame, ...] = ()
    obstacle: str = ""
    remark: str = ""

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the program, else of a package, else of Python; None without frames."""
        programs = [frame for frame in self.frames if frame.is_program]
        in_files = [frame for frame in programs if not frame.file.startswith("<")]  # packages compile strings, too
        packages = [frame for frame in self.frames if not frame.is_python]
        return next(iter((*in_files, *programs, *packages, *self.frames)), None)

    @property
    def is_in_runtime(self) -> bool:
        """The program has called hvdrun, and waits there for others."""
        for frame in self.frames:
            if frame.is_runtime:
                return True
            if frame.is_program:
                return False
        return False

    def __str__(self) -> str:
        """Where it is, in a few words, or why that is not known."""
        place = self.place
        if place is None:
            return self.obstacle
        return str(place)


@dataclass(frozen=True, slots=True)
class WorkerStack:
    """Where a worker of a host is; slot and incarnation name it."""

    slot: int
    incarnation: int
    stack: Stack


def encode_stacks(stacks: Iterable[WorkerStack]) -> str:
    """The stacks as JSON."""
    return json.dumps([asdict(each) for each in stacks])


def decode_stacks(text: str) -> tuple[WorkerStack, ...]:
    """The stacks of `encode_stacks`.

    Raises:
        ValueError, KeyError, TypeError: the text is malformed.
    """
    return tuple(
        WorkerStack(each["slot"], each["incarnation"], decode_stack(each["stack"])) for each in json.loads(text)
    )


def decode_stack(fields: dict[str, object]) -> Stack:
    """The stack in decoded JSON.

    Raises:
        TypeError: the fields are no stack's.
    """
    frames = fields.pop("frames")
    if not isinstance(frames, list):
        raise TypeError("the frames are no list")
    return Stack(**fields, frames=tuple(Frame(**frame) for frame in frames))  # type: ignore[arg-type]  # checked above
