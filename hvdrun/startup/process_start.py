"""What each program of hvdrun sets at its start, since its parent may have left something else."""

import os
import signal
import tempfile

from rendezvous.server.file_limit import raise_file_limit

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - writable in every container


def prepare_process() -> None:
    """Block no signal, hear of the ends of children, and allow all the files that may be open.

    What this process starts inherits it. Signals that the parent ignores stay ignored, as nohup wants it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    raise_file_limit()
    find_temporary_folder()


def find_temporary_folder() -> None:
    """Name a folder for temporary files where the usual ones cannot be written, as in a container that is read-only.

    Where no such folder is found, the one that needs it says so.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
            os.environ["TMPDIR"] = tempfile.tempdir = _SHARED_MEMORY
