"""Makes a forked process like an executed one: command line, environment, descriptors, streams, threads, exit.

Linux knows the addresses of a process's arguments and environment; `ps`, py-spy, and an agent that searches for a
worker's stray processes, read them. PR_SET_MM_MAP sets new addresses without privileges (Linux since 3.18 with
CONFIG_CHECKPOINT_RESTORE, which distributions have). If the kernel refuses, the process looks like the forkserver in
`ps`.

The forkserver loads torch and NumPy's BLAS with OMP_NUM_THREADS=1. A worker sets their number of threads.
"""

import ctypes
import fcntl
import io
import mmap
import os
import struct
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_MAP = struct.Struct("=11QQII")  # struct prctl_mm_map
_NO_FILE = 0xFFFFFFFF
_FIRST_STAT_FIELD = 3  # after the name in parentheses
_STANDARD = 3  # descriptors that stay
_CODE = " r-xp "  # in a line of /proc/self/maps


def take_descriptors(streams: Sequence[int], memory: tuple[int, int] | None = None, kept: Collection[int] = ()) -> None:
    """Make these descriptors standard input, output and error, and close all others.

    Python's stream objects stay, since libraries may hold them; their state of the former descriptors (seekability,
    buffers) is reset.

    Args:
        streams: the three.
        memory: another one to keep, and its new number.
        kept: those of libraries, which stay where they are.
    """
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    staying = set(kept)
    if memory is not None:
        os.dup2(*memory)
        staying.add(memory[1])
    first = _STANDARD
    for descriptor in sorted(staying):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, max(list_descriptors(), default=0) + 1)
    for descriptor, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        if type(stream) is io.TextIOWrapper:  # None if the descriptor was closed
            _renew(stream, descriptor)


def list_descriptors() -> list[int]:
    """All open descriptors, without the one that lists them."""
    names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are all that is wanted
    return [int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}")]


def find_libraries(descriptors: Collection[int]) -> set[int]:
    """The descriptors of libraries among these: of files that this process runs and cannot write.

    Newer releases of libffi keep their own file open, and map it again for further callbacks of ctypes: without the
    descriptor these crash.
    """
    paths = {descriptor: os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors}  # noqa: PTH115 - pathlib's is slower
    if not any(path.startswith("/") for path in paths.values()):
        return set()
    code = {_get_path(line) for line in _read_maps() if _CODE in line and "/" in line}
    return {descriptor for descriptor, path in paths.items() if path in code and _is_read_only(descriptor)}


def take_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment."""
    os.environ.clear()
    os.environ.update(environment)


def show(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Show these arguments and this environment in /proc; return False if the kernel refuses."""
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


def end_without_inherited_destructors() -> None:
    """Have `exit` end this process before the destructors of the libraries that were loaded until now.

    With torch these take 0.15 s, and only give back memory. What registers itself from now on runs at exit as ever, and
    the buffers of C are written. A library that was preloaded may have more to do: then nothing is changed.
    """
    libc = ctypes.CDLL(None)
    if "LD_PRELOAD" not in os.environ and hasattr(libc, "on_exit"):  # musl has none
        libc.on_exit(libc["_exit"], None)
        libc["__cxa_atexit"](libc.fflush, None, None)


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
    """Set the addresses of arguments and environment in the kernel; the others stay, as in /proc/self/stat."""
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


# NumPy and SciPy rename the symbols of their OpenBLAS, differently in each release.
_OPENBLAS_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)


def set_thread_counts(wanted: int | None) -> None:
    """Use as many threads as if OMP_NUM_THREADS had been set before the imports; None if it was not set."""
    if wanted == 1:
        return
    usable = len(os.sched_getaffinity(0))
    count = usable if wanted is None else min(wanted, usable)

    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.backends.mkl.is_available():  # MKL uses at most one thread per core, and torch follows it
            torch.set_num_threads(min(count, len(_find_cores())))
        else:
            torch.set_num_threads(usable if wanted is None else wanted)

    for library in _find_openblas():
        handle = ctypes.CDLL(library)
        for name in _OPENBLAS_SETTERS:
            if hasattr(handle, name):
                getattr(handle, name)(count)
                break


def _find_openblas() -> set[str]:
    """The OpenBLAS libraries that this process has mapped; NumPy and SciPy have one each."""
    return {_get_path(line) for line in _read_maps() if "openblas" in line and "/" in line}


def _read_maps() -> list[str]:
    """What this process has mapped, a line for each part of its memory."""
    return Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _get_path(line: str) -> str:
    return line[line.index("/") :]


def _is_read_only(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _find_cores() -> set[tuple[str, str]]:
    """The cores that this process may use; a core may have two hardware threads."""
    return {_find_core(cpu) for cpu in os.sched_getaffinity(0)}


def _find_core(cpu: int) -> tuple[str, str]:
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        package = (topology / "physical_package_id").read_text(encoding="ascii").strip()
        return package, (topology / "core_id").read_text(encoding="ascii").strip()
    except OSError:  # no such folder in some containers
        return "cpu", str(cpu)
