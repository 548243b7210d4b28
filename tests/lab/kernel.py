"""The Linux calls that namespaces need and Python 3.11 has no function for."""

import ctypes
import os
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_HOSTNAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

_MS_RDONLY = 1
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; new process ids are for children only. Raises OSError."""
    _check(_LIBC.unshare(flags), "unshare")


def enter(descriptor: int, flags: int) -> None:
    """Go, in this thread, to the namespace (or to the process's) that a descriptor stands for. Raises OSError."""
    _check(_LIBC.setns(descriptor, flags), "setns")


def die_with_parent(number: int) -> None:
    """Have the kernel send this signal to the calling process when the thread that forked it ends."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")


def isolate_mounts() -> None:
    """Keep what is mounted from here on to this mount namespace."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)


def mount_fresh(kind: str, target: Path, options: str | None = None, *, read_only: bool = False) -> None:
    """Mount an empty tmpfs, or this process's view of proc or sysfs. Raises OSError."""
    _mount("lab", str(target), kind, _MS_RDONLY if read_only else 0, options)


def bind(source: Path, target: Path) -> None:
    """Show a file or a folder, with what is mounted beneath, at a second place. Raises OSError."""
    _mount(str(source), str(target), None, _MS_BIND | _MS_REC, None)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check(_LIBC.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
