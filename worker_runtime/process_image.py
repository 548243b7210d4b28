"""Makes a forked process look from outside as if it had been executed: command line, environment, descriptors, session.

Linux keeps where a process' arguments and environment lie in its memory; `ps`, py-spy and an agent that looks for a
worker's strays read them from there. PR_SET_MM_MAP points the kernel to new ones and needs no privilege (kernels
since 3.18 with CONFIG_CHECKPOINT_RESTORE, which distributions have); where it is refused, the process only looks like
the forkserver in `ps`.
"""

import ctypes
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_MAP = struct.Struct("=11QQII")  # struct prctl_mm_map
_NO_FILE = 0xFFFFFFFF
_FIRST_STAT_FIELD = 3  # after the name in parentheses
_KEPT_DESCRIPTORS = 3


def become_leader() -> None:
    """Lead a session of one's own."""
    os.setsid()


def take_streams(streams: Sequence[int]) -> None:
    """Make these descriptors standard input, output and error, and close every other one."""
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    limit = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted
    os.closerange(_KEPT_DESCRIPTORS, limit + 1)


def take_environment(environment: Mapping[str, str]) -> None:
    """Have this environment and no other."""
    os.environ.clear()
    os.environ.update(environment)


def show(arguments: Sequence[str], environment: Mapping[str, str]) -> mmap.mmap | None:
    """Show these arguments and this environment in /proc; the memory they lie in, or None where that is refused."""
    shown_arguments = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    shown_environment = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    memory = mmap.mmap(-1, len(shown_arguments) + len(shown_environment), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(shown_arguments + shown_environment)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = start + len(shown_arguments)
    return memory if _remap(start, middle, middle + len(shown_environment)) else None


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
