"""What a worker leaves to the processes that it starts: a mark that names the member of the job, and a folder.

The processes inherit the variables by which the worker has joined, and would join in its place: the member would lose
the connections of a job that continues without it. The mark shows them that this process is the member.

`multiprocessing` makes a folder for sockets as soon as processes hand each other descriptors, as the workers of a
`DataLoader` do, and removes it when they end in good order. A process that is killed removes nothing, and workers are
killed in every job that is interrupted. So the folder lies in that of the agent's socket, which goes with the job. What
children inherit, whichever way they are started, is private to `multiprocessing`; TMPDIR, the only other way, would
move the program's own files as well.
"""

import contextlib
import multiprocessing.process
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from worker_runtime.errors import MemberElsewhereError

_MARK = "HVD_MEMBER"  # the member's process and rank, and as whom it has joined


def set_mark(environment: MutableMapping[str, str], identity: str, rank: int) -> None:
    """This process has joined.

    Args:
        environment: what processes inherit that this one starts.
        identity: as whom it has joined.
        rank: its rank.
    """
    environment[_MARK] = f"{os.getpid()} {rank} {identity}"


def check_mark(environment: Mapping[str, str], identity: str) -> None:
    """Make sure that no process above this one is the member of this identity.

    Raises:
        MemberElsewhereError: one is, and has not left.
    """
    pid, _, rest = environment.get(_MARK, "").partition(" ")
    rank, _, marked = rest.partition(" ")
    if pid and marked == identity and pid != str(os.getpid()):
        raise MemberElsewhereError(int(pid), int(rank))


def remove_mark(environment: MutableMapping[str, str]) -> None:
    """This process has left; another one's mark stays."""
    if environment.get(_MARK, "").partition(" ")[0] == str(os.getpid()):
        del environment[_MARK]


_KEY = "tempdir"  # what `multiprocessing.util.get_temp_dir()` reads
_NAME_BYTES = len("/listener-") + 8  # as `multiprocessing.connection` names its sockets
_PATH_BYTES = 107  # of a Unix socket's path, at most


def place_below(folder: Path | None) -> None:
    """Have multiprocessing keep its sockets below the folder, in one of this process and its children.

    Nothing is changed where it has a place already, or where a socket's path would be too long.

    Args:
        folder: the job's on this host; None where there is none.
    """
    if folder is None:
        return
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    path = folder / f"mp-{os.getpid()}"
    if config.get(_KEY) is not None or len(os.fsencode(path)) + _NAME_BYTES > _PATH_BYTES:
        return
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        config[_KEY] = str(path)
