"""The end of a process that is not our child: the kernel tells of it, or else somebody must look."""

import os
import select
import time
from pathlib import Path

_LOOK_SECONDS = 0.5
_START_FIELD = 19  # of /proc/PID/stat, counted from the state, which follows the name in parentheses


def wait_for_end(pid: int) -> None:
    """Return when this process has ended, be it reaped or not. The thread sleeps meanwhile.

    A pidfd tells of the end. Pythons that were built on an old Linux cannot open one, nor can Linux before 5.3 and some
    containers: there /proc is read twice a second.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        _look_until_end(pid)
        return
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll()
    os.close(pidfd)


def _look_until_end(pid: int) -> None:
    """By its start a process is told from a later one of the same number."""
    started = read_start(pid)
    while started and read_start(pid) == started:
        time.sleep(_LOOK_SECONDS)


def read_start(pid: int) -> bytes:
    """When it was started, in ticks of the kernel; empty when it has ended."""
    while True:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return b""
        except OSError:  # no more files are to be had now
            time.sleep(_LOOK_SECONDS)
        else:
            return b"" if fields[0] in b"ZX" else fields[_START_FIELD]
