"""What each program of hvdrun sets at its start, since its parent may have left something else."""

import os
import signal
import tempfile
from pathlib import Path

from rendezvous.server.file_limit import raise_file_limit

_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - as tempfile has them
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
    """Choose the folder for temporary files: tempfile's order, and shared memory in a container that is read-only.

    tempfile itself writes a file into each folder that it tries, which stays where a signal ends the process meanwhile.
    Where no folder can be written, the caller that needs one says so.
    """
    named = map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))
    for folder in (*named, *_USUAL, os.curdir, _SHARED_MEMORY):
        if folder and os.access(folder, os.W_OK | os.X_OK) and Path(folder).is_dir():
            tempfile.tempdir = str(Path(folder).absolute())
            if folder == _SHARED_MEMORY:
                os.environ["TMPDIR"] = folder
            return
