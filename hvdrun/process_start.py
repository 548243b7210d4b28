"""What each program of hvdrun sets at its start, since its parent may have left something else."""

import signal

from rendezvous.file_limit import raise_file_limit


def prepare_process() -> None:
    """Block no signal, hear of the ends of children, and allow all the files that may be open.

    What this process starts inherits it. Signals that the parent ignores stay ignored, as nohup wants it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    raise_file_limit()
