"""Waiting for the end of another process; and child processes that exit with their parent.

`python -c BOOT PATH PID MODULE ...` runs a module in a process that exits with its parent, the process PID. The end of
a pipe is not enough: a forked child of the parent, such as a DataLoader's worker, has its other end open too, and may
outlive the parent. So a thread waits for the end of the parent process.
"""

import json
import os
import runpy
import select
import sys
import threading
import time
from pathlib import Path

_LOOK_SECONDS = 0.5
_START_FIELD = 19  # in /proc/PID/stat, counted from the state, which follows the name in parentheses
# The parent's search path is appended, so that nothing in it hides a module of Python.
BOOT = (
    "import sys, json; sys.path += json.loads(sys.argv[1]); "
    "from worker_runtime.startup.parent_process import main; main()"
)


def make_arguments(module: str, *arguments: str) -> list[str]:
    """The arguments after `python -P -c` of a child that exits with this process."""
    return [BOOT, json.dumps([entry for entry in sys.path if entry]), str(os.getpid()), module, *arguments]


def main() -> None:
    """Start to watch the parent, and run the module of the command line as `__main__`."""
    _, _, parent, module, *arguments = sys.argv
    threading.Thread(target=_follow, args=(int(parent),), name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _follow(parent: int) -> None:
    """Exit when the parent has ended."""
    if os.getppid() == parent:
        wait_for_end(parent)
    os._exit(0)


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, whether or not it is reaped.

    The thread sleeps on a pidfd. Pythons that were built on an old Linux, Linux before 5.3 and some containers have no
    pidfds: there /proc is read twice a second.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended
        return
    except (AttributeError, OSError):
        _look_until_end(pid)
        return
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll()
    os.close(pidfd)


def _look_until_end(pid: int) -> None:
    """Poll /proc; the start time distinguishes a process from a later one with the same pid."""
    started = read_start(pid)
    while started and read_start(pid) == started:
        time.sleep(_LOOK_SECONDS)


def read_start(pid: int) -> bytes:
    """The start time of a process in ticks of the kernel; empty if it has ended."""
    while True:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return b""
        except OSError:  # no free descriptors
            time.sleep(_LOOK_SECONDS)
        else:
            return b"" if fields[0] in b"ZX" else fields[_START_FIELD]
