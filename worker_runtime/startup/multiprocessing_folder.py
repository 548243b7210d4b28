"""Where Python's multiprocessing keeps what a worker and its children meet by: in the job's folder, not in /tmp.

`multiprocessing` makes a folder for sockets as soon as processes hand each other descriptors, as the workers of a
`DataLoader` do, and removes it when they end in good order. A process that is killed removes nothing, and workers are
killed in every job that is interrupted. The folder of the agent's socket goes with the job, whatever becomes of the
worker.

What children inherit, whichever way they are started, is private to `multiprocessing`; TMPDIR, the only other way,
would move the program's own files as well.
"""

import contextlib
import multiprocessing.process
import os
from pathlib import Path

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
