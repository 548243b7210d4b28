"""The end of another process: the kernel tells of it, or else somebody must look; and children that end with us.

`python -c BOOT PATH PID MODULE ...` runs a module in a process that ends with its parent, the process PID. The end of a
pipe does not tell of that: a forked child of the parent, such as a DataLoader's worker, holds the other end open too,
and may outlive its parent. So a thread waits for the end of the parent itself.
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
_START_FIELD = 19  # of /proc/PID/stat, counted from the state, which follows the name in parentheses
# What the parent's search path has and this one's lacks is searched last, so that nothing there hides a module of
# Python's own.
BOOT = (
    "import sys, json; sys.path += json.loads(sys.argv[1]); "
    "from worker_runtime.startup.parent_process import main; main()"
)


def make_arguments(module: str, *arguments: str) -> list[str]:
    """What follows `python -P -c` for a child that ends with this process."""
    return [BOOT, json.dumps([entry for entry in sys.path if entry]), str(os.getpid()), module, *arguments]


def main() -> None:
    """Read the command line, and become what it names; the module runs as if it had been started by itself."""
    _, _, parent, module, *arguments = sys.argv
    threading.Thread(target=_follow, args=(int(parent),), name="parent-watch", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _follow(parent: int) -> None:
    """End this process with its parent."""
    if os.getppid() == parent:
        wait_for_end(parent)
    os._exit(0)


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
