"""Makes a forked process look from outside as if it had been executed: command line, environment, descriptors, streams.

Linux keeps where a process' arguments and environment lie in its memory; `ps`, py-spy and an agent that looks for a
worker's strays read them from there. PR_SET_MM_MAP points the kernel to new ones and needs no privilege (kernels
since 3.18 with CONFIG_CHECKPOINT_RESTORE, which distributions have); where it is refused, the process only looks like
the forkserver in `ps`.
"""

import ctypes
import io
import mmap
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_MAP = struct.Struct("=11QQII")  # struct prctl_mm_map
_NO_FILE = 0xFFFFFFFF
_FIRST_STAT_FIELD = 3  # after the name in parentheses
_STANDARD = 3  # descriptors that stay


def take_streams(streams: Sequence[int]) -> None:
    """Make these descriptors standard input, output and error, and close every other one.

    Python's own streams stay the same objects, which libraries may have kept, and forget what they knew of the former
    descriptors (whether one can seek, what was read ahead).
    """
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.closerange(_STANDARD, max(list_descriptors(), default=0) + 1)
    for descriptor, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        if type(stream) is io.TextIOWrapper:  # None where a descriptor was closed
            _renew(stream, descriptor)


def list_descriptors() -> list[int]:
    """All open descriptors, without that of the look itself."""
    names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are all that is wanted
    return [int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}")]


def take_environment(environment: Mapping[str, str]) -> None:
    """Have this environment and no other."""
    os.environ.clear()
    os.environ.update(environment)


def show(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Show these arguments and this environment in /proc from now on; False where that is refused."""
    shown_arguments = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    shown_environment = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    memory = mmap.mmap(-1, len(shown_arguments) + len(shown_environment), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(shown_arguments + shown_environment)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = start + len(shown_arguments)
    if not _remap(start, middle, middle + len(shown_environment)):
        return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # the kernel reads there for as long as the process lives
    return True


def _renew(stream: io.TextIOWrapper, descriptor: int) -> None:
    """Open the stream again, in place and in its own manner; it has nothing to write."""
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)
    mode = "rb" if descriptor == 0 else "wb"
    buffer = open(descriptor, mode, buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115 - stays open
    raw: object = getattr(buffer, "raw", buffer)
    setattr(raw, "name", stream.name)  # noqa: B010 - that of io.FileIO can be set, unlike what its type says
    stream.__init__(  # type: ignore[misc]  # in place is the point
        buffer,
        stream.encoding,
        stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _remap(arguments: int, environment: int, end: int) -> bool:
    """Tell the kernel where arguments and environment lie; everything else stays as /proc/self/stat says it is."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()

    def field(number: int) -> int:
        return int(fields[number - _FIRST_STAT_FIELD])

    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    data = _MAP.pack(
        field(26),  # start of code
        field(27),  # its end
        field(45),  # start of data
        field(46),  # its end
        field(47),  # start of the heap
        libc.sbrk(ctypes.c_ssize_t(0)),  # its end
        field(28),  # start of the stack
        arguments,
        environment,
        environment,
        end,
        0,  # the auxiliary vector stays
        0,
        _NO_FILE,
    )
    size = ctypes.c_ulong(len(data))
    return bool(libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.create_string_buffer(data, len(data)), size, 0) == 0)
