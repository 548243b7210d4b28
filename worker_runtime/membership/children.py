"""The inheritance of a worker's child processes: a variable that names the member, and a folder for sockets.

Child processes inherit the variables by which the worker has joined, and could join in its place: the worker would then
lose its connections. The variable HVD_MEMBER tells them which process is the member of the job.

`multiprocessing` creates a folder for sockets when processes send each other descriptors, as the workers of a
`DataLoader` do, and removes it at a regular exit. A killed process removes nothing, and every interrupted job kills
workers. So the folder is below that of the agent's socket, which is removed with the job. Its path is set in a private
variable of `multiprocessing` that all children inherit; TMPDIR would also move the program's own files.
"""

import contextlib
import multiprocessing.process
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from worker_runtime.errors import MemberElsewhereError

_MEMBER = "HVD_MEMBER"  # the member's process, rank and identity


def set_member(environment: MutableMapping[str, str], identity: str, rank: int) -> None:
    """Name this process as the member of the job.

    Args:
        environment: the environment that child processes inherit.
        identity: the job and the worker that this process has joined as.
        rank: its rank.
    """
    environment[_MEMBER] = f"{os.getpid()} {rank} {identity}"


def check_member(environment: Mapping[str, str], identity: str) -> None:
    """Check that no ancestor of this process is the member of this identity.

    Raises:
        MemberElsewhereError: an ancestor is the member, and has not left.
    """
    pid, _, rest = environment.get(_MEMBER, "").partition(" ")
    rank, _, named = rest.partition(" ")
    if pid and named == identity and pid != str(os.getpid()):
        raise MemberElsewhereError(int(pid), int(rank))


def remove_member(environment: MutableMapping[str, str]) -> None:
    """Remove the name of this process; that of another process stays."""
    if environment.get(_MEMBER, "").partition(" ")[0] == str(os.getpid()):
        del environment[_MEMBER]


_KEY = "tempdir"  # the key that `multiprocessing.util.get_temp_dir()` reads
_NAME_BYTES = len("/listener-") + 8  # of the sockets of `multiprocessing.connection`
_PATH_BYTES = 107  # the longest path of a Unix socket


def keep_sockets_below(folder: Path | None) -> None:
    """Make multiprocessing keep the sockets of this process and its children below a folder.

    Changes nothing if multiprocessing already has a folder, or if a socket's path would be too long.

    Args:
        folder: the job's folder on this host; None for no folder.
    """
    if folder is None:
        return
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001 - multiprocessing has no public way
    path = folder / f"mp-{os.getpid()}"
    if config.get(_KEY) is not None or len(os.fsencode(path)) + _NAME_BYTES > _PATH_BYTES:
        return
    with contextlib.suppress(OSError):  # multiprocessing creates a folder of its own then
        path.mkdir(mode=0o700, exist_ok=True)
        config[_KEY] = str(path)
