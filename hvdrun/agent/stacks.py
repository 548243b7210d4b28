"""Asks Python programs where their main thread is: see `worker_runtime/startup/stack_handler.py`.

A thread that has not moved for some milliseconds is asked in C, and any other one in Python. If that does not answer,
the thread stands in a call that lasts, and is asked in C as well.

The signals go only to a process that catches them and has the memory for the answer open: any other would end by them.
A program that is stopped, or whose main thread blocks the signals, is not asked.
"""

import ctypes
import linecache
import os
import re
import signal
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hvdrun.processes import processes
from hvdrun.spec.stacks import Frame, Stack
from rendezvous.bootstrap import RUNNING_SIGNAL_OFFSET, STACK_MEMORY, STACK_SIGNAL_OFFSET

T = TypeVar("T", bound=Hashable)

STACK_SIGNAL = signal.SIGRTMIN + STACK_SIGNAL_OFFSET
RUNNING_SIGNAL = signal.SIGRTMIN + RUNNING_SIGNAL_OFFSET
_BITS = 1 << (STACK_SIGNAL - 1) | 1 << (RUNNING_SIGNAL - 1)
_PROC = Path("/proc")
_LINK = f"/memfd:{STACK_MEMORY} (deleted)"
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$', re.MULTILINE)
_ESCAPE = re.compile(r"\\(x[89a-f][0-9a-f]|u(?!d[89a-f])[0-9a-f]{4}|U000[1-9a-f][0-9a-f]{4})")  # no surrogates
_MOST_BYTES = 1024 * 1024
_ENDED = "it has ended"
_LOOK_SECONDS = 0.005
_STILL_SECONDS = 0.01  # a thread that sleeps for so long does not run at the next moment, either
_PYTHON_SHARE = 0.4  # of the limit, after which a thread that has not answered in Python is asked in C
_HEADER = "Stack (most recent call first):"
_STOPPED, _TRACED, _IN_KERNEL, _SLEEPS = "T", "t", "D", "S"


class _Question:
    """One process that is asked.

    Args:
        pid: the process.
        memory: a descriptor of the shared memory for the answer; this object closes it.
    """

    def __init__(self, pid: int, memory: int) -> None:
        self.pid = pid
        self._memory = memory
        self._moves = _count_moves(pid)
        self._is_asked_in_c = False
        os.ftruncate(memory, 0)

    def ask(self) -> None:
        """Ask it, in C if it has stood still since this object was made.

        Raises:
            OSError: it has ended.
        """
        if self._moves is not None and _count_moves(self.pid) == self._moves:
            self.ask_in_c()
        else:
            _signal_main_thread(self.pid, RUNNING_SIGNAL)

    def ask_in_c(self) -> None:
        """Ask it in C, once.

        Raises:
            OSError: it has ended.
        """
        if not self._is_asked_in_c:
            self._is_asked_in_c = True
            _signal_main_thread(self.pid, STACK_SIGNAL)

    def read_answer(self) -> str | None:
        """The whole answer; None while there is none."""
        if not os.fstat(self._memory).st_size or _is_in_handler(self.pid):
            return None
        return os.pread(self._memory, _MOST_BYTES, 0).decode(errors="replace")

    def close(self) -> None:
        """Forget the answer."""
        with suppress(OSError):  # a full memory
            os.ftruncate(self._memory, 0)
        os.close(self._memory)


def take_stacks(workers: Mapping[T, int], limit_seconds: float) -> dict[T, Stack]:
    """Where each of these workers is; all are asked at the same time, and have this time to answer.

    Args:
        workers: the main process of each worker. If that is no Python program, such as a shell, its first descendant
            that is one is asked.
        limit_seconds: the limit.
    """
    began = time.monotonic()
    found: dict[T, Stack] = {}
    asked: dict[T, _Question] = {}
    for worker, pid in workers.items():
        question = _prepare(pid)
        if isinstance(question, Stack):
            found[worker] = question
        else:
            asked[worker] = question

    if asked:
        time.sleep(_STILL_SECONDS)
    for question in asked.values():
        with suppress(OSError):  # it ended meanwhile
            question.ask()
    while asked:
        waited_seconds = time.monotonic() - began
        for worker, question in tuple(asked.items()):
            stack = _look(question, waited_seconds, limit_seconds)
            if stack is not None:
                found[worker] = stack
                asked.pop(worker).close()
        if asked:
            time.sleep(_LOOK_SECONDS)
    return found


def _look(question: _Question, waited_seconds: float, limit_seconds: float) -> Stack | None:
    """Where the process is, or why that is not known; None while it may answer."""
    with suppress(OSError):  # it ended meanwhile
        answer = question.read_answer()
        if answer is not None:
            return _add_text(Stack(question.pid, tuple(parse_frames(answer))))
        if waited_seconds > _PYTHON_SHARE * limit_seconds:
            question.ask_in_c()
    process = processes.look(question.pid)
    if waited_seconds > limit_seconds or process is None or process.is_dead:
        return Stack(question.pid, obstacle=_explain_silence(question.pid, limit_seconds))
    return None


def parse_frames(text: str) -> Iterator[Frame]:
    """The frames in what `faulthandler` has written, the innermost first."""
    _, _, last = text.rpartition(_HEADER)  # an answer to an earlier question may have come late
    for match in _FRAME.finditer(last):
        line = 0
        if match["line"].isdecimal():
            line = int(match["line"])
        yield Frame(_decode(match["file"]), line, _decode(match["function"]))


def _decode(name: str) -> str:
    """A name in which letters beyond ASCII are escaped, as `faulthandler` does."""
    return _ESCAPE.sub(lambda match: chr(int(match[1][1:], base=16)), name)


def _prepare(pid: int) -> _Question | Stack:
    """The question to a worker; a stack without frames where it cannot be asked."""
    process = processes.look(pid)
    if process is None or process.is_dead:
        return Stack(pid, obstacle=_ENDED)
    if process.state in {_STOPPED, _TRACED}:
        return Stack(pid, obstacle=f"it is stopped: kill -CONT {pid} lets it continue")

    for each in (process, *processes.descendants(pid)):
        if each.state in {_STOPPED, _TRACED} or _read_mask(each.pid, "SigCgt") & _BITS != _BITS:
            continue
        if _is_in_handler(each.pid):
            return Stack(each.pid, obstacle=f"its program blocks signal {STACK_SIGNAL}, by which hvdrun asks")
        with suppress(OSError):  # it ended meanwhile, or is another user's by now
            memory = _open_memory(each.pid)
            if memory is not None:
                return _Question(each.pid, memory)
    return Stack(pid, obstacle=_explain_no_handler(pid))


def _open_memory(pid: int) -> int | None:
    folder = _PROC / str(pid) / "fd"
    for name in os.listdir(folder):  # noqa: PTH208 - names are all that is wanted
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(folder / name) == _LINK:  # noqa: PTH115 - readlink() gives text
                return os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
    return None


def _explain_no_handler(pid: int) -> str:
    with suppress(OSError):  # it ended meanwhile
        program = Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115 - readlink() gives text
        if not program.startswith("python"):
            return f"its program, {program}, is not Python"
    return "its Python has not run hvdrun's start, or has closed what it opens"


def _explain_silence(pid: int, limit_seconds: float) -> str:
    process = processes.look(pid)
    if process is None or process.is_dead:
        return _ENDED
    where = ""
    if process.state == _IN_KERNEL:
        with suppress(OSError):  # it ended meanwhile, or the kernel does not tell
            where = (_PROC / str(pid) / "wchan").read_text(encoding="ascii").strip("0")
        return f"it waits in the kernel, which no signal ends{f' ({where})' if where else ''}"
    return f"it did not answer within {limit_seconds:g} s"


def _is_in_handler(pid: int) -> bool:
    """The main thread writes its answer, in the signal's handler, or blocks the signal."""
    return bool(_read_mask(pid, "SigBlk") & _BITS)


def _read_mask(pid: int, name: str) -> int:
    """A set of signals of the main thread; empty where it has ended."""
    with suppress(OSError):  # it ended meanwhile
        for line in (_PROC / str(pid) / "status").read_bytes().splitlines():
            key, _, value = line.partition(b":")
            if key == name.encode():
                return int(value, 16)
    return 0


def _count_moves(pid: int) -> int | None:
    """How often the main thread has gone to sleep, if it sleeps now; None if it runs, or has ended."""
    process = processes.look(pid)
    if process is None or process.state != _SLEEPS:
        return None
    with suppress(OSError):  # it ended meanwhile
        for line in (_PROC / str(pid) / "status").read_bytes().splitlines():
            if line.startswith(b"voluntary_ctxt_switches:"):
                return int(line.split()[1])
    return None


def _signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread of this process alone.

    Raises:
        OSError: the process has ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.tgkill(pid, pid, number):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _add_text(stack: Stack) -> Stack:
    """The stack with the lines of the program where it is."""
    if not stack.frames:
        return replace(stack, obstacle="its main thread runs no Python")
    folder = Path()
    with suppress(OSError):  # it ended meanwhile
        folder = Path(os.readlink(f"/proc/{stack.pid}/cwd"))  # noqa: PTH115 - readlink() gives text
    frames = [
        replace(each, text=linecache.getline(str(folder / each.file), each.line).strip()) for each in stack.frames
    ]
    linecache.clearcache()  # the program may change
    return replace(stack, frames=tuple(frames))
