"""How a program of hvdrun begins and ends as a process: what its parent has left is reset, and teardown is skipped."""

import atexit
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hvdrun.startup.paths import is_folder
from rendezvous.server.file_limit import raise_file_limit

_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - the folders of tempfile
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - writable in every container
_UNWRITTEN = 120


def prepare_process() -> None:
    """Unblock all signals, do not ignore SIGCHLD, raise the limit of open files, and choose the temporary folder.

    Child processes inherit this. Signals that the parent ignores stay ignored, as nohup wants it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    raise_file_limit()
    find_temporary_folder()


def find_temporary_folder() -> None:
    """Choose the folder for temporary files in tempfile's order; last comes shared memory, for read-only containers.

    tempfile itself writes a file into each folder that it tries, and leaves it where a signal ends the process
    meanwhile. Where no folder can be written, the first caller that needs one reports that.
    """
    named = map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))
    for folder in (*named, *_USUAL, os.curdir, _SHARED_MEMORY):
        if folder and os.access(folder, os.W_OK | os.X_OK) and is_folder(Path(folder)):
            tempfile.tempdir = str(Path(folder).absolute())
            if folder == _SHARED_MEMORY:
                os.environ["TMPDIR"] = folder
            return


def end_process(code: int) -> NoReturn:
    """Run the exit handlers, write what is buffered, and exit, without Python's teardown, which takes up to 0.1 s.

    Threads that are left end with the process. Output that cannot be written is reported in one sentence, and ends with
    Python's exit code for it.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter calls it at this place
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError) as error:
        with suppress(OSError):  # the exit code reports it
            os.write(2, f"the output cannot be written: {error}\n".encode())
        code = code or _UNWRITTEN
    os._exit(code)
