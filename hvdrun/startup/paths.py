"""Looks at paths that may lie where this user may not look.

`Path.is_file`, `Path.is_dir` and `Path.exists` raise an error for a folder that is closed, a name that is too long or a
file server that is down. Here such a path counts as missing, as for execvp, which skips it on PATH.
"""

import errno
import os
import select
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_PIPE_SECONDS = 30.0  # until something comes out of a pipe


def is_file(path: Path) -> bool:
    """There is a regular file, or a link to one."""
    return stat.S_ISREG(_read_mode(path))


def is_folder(path: Path) -> bool:
    """There is a folder, or a link to one."""
    return stat.S_ISDIR(_read_mode(path))


def exists(path: Path) -> bool:
    """There is anything; a link to nothing is nothing."""
    return _read_mode(path) != 0


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file, or a link to one; a FIFO would block this process until somebody opens its other end.

    flags: as for os.open.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "wb" if flags & os.O_WRONLY else "rb")


def read_file(path: Path, most_bytes: int) -> bytes:
    """Read a file or a pipe, as in `<(command)`, up to one byte more than `most_bytes`.

    Raises:
        OSError: it cannot be read, or for half a minute nothing comes out of the pipe.
        ValueError: the path has a NUL.
    """
    # Without O_NONBLOCK a FIFO would block this process until somebody opens its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.set_blocking(descriptor, True)
            return file.read(most_bytes + 1)

        data, has_ended = b"", False
        while not has_ended and len(data) <= most_bytes:
            ready, _, _ = select.select([descriptor], [], [], _PIPE_SECONDS)
            if not ready:
                raise OSError(errno.ETIMEDOUT, f"for {_PIPE_SECONDS:g} s nothing has come out of this pipe", str(path))
            chunk = os.read(descriptor, most_bytes + 1 - len(data))
            data, has_ended = data + chunk, not chunk
        return data


def open_appended(path: Path, flags: int = 0, *, within: Path | None = None) -> int:
    """The descriptor of a file to whose end this process writes; it is created where there is none.

    flags: more of them, for os.open.
    within: a folder that holds it; links below that are looked at, too. Without it: the folder of the file.

    Raises:
        OSError: it cannot be opened; or a link to it is another user's, who would choose which file is written.
    """
    folders = [path.parent]
    while within is not None and within not in folders:
        folders.append(folders[-1].parent)
    for each in (*reversed(folders), path):
        with suppress(FileNotFoundError):  # it is created now
            known = each.lstat()
            if stat.S_ISLNK(known.st_mode) and known.st_uid not in (0, os.geteuid()):
                raise OSError(errno.ELOOP, f"{str(each)!r} is a link of another user")
    flags |= os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)  # a FIFO without a reader is an error, and does not block
    os.set_blocking(descriptor, True)
    return descriptor


def find_fault(directory: Path) -> str | None:
    """Why this is no folder that a process can work in, as the end of a sentence about it; None where it is one."""
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        return "is a broken link" if os.path.lexists(directory) else "does not exist"
    except OSError as error:
        return "is no folder" if error.errno == errno.ENOTDIR else f"cannot be used ({error.strerror})"
    if not stat.S_ISDIR(mode):
        return "is no folder"
    if os.access(directory, os.X_OK):
        return None
    return "may not be entered by this user"


def find_closed(path: Path) -> str | None:
    """What keeps this user from looking whether there is such a file: the system's words; None where nothing does."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


def _read_mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # the latter: no path can have such a name
        return 0
