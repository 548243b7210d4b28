"""`python -c BOOT PATH FD MODULE ...`: runs a module of ours in a process that ends with the one that it serves.

The end of a pipe does not tell of that: a forked child of the owner, such as a DataLoader's worker, holds the other end
open as well and may outlive its parent. So the owner passes on a pidfd of its own, which tells of its end and of
nothing else. It is watched by a thread, which sleeps in the kernel.
"""

import json
import os
import runpy
import select
import sys
import threading

# What the owner's search path has and this one's lacks is searched last, so that nothing there hides a module of
# Python's own.
BOOT = "import sys, json; sys.path += json.loads(sys.argv[1]); from worker_runtime.tether import main; main()"


def main() -> None:
    """Read the command line, and become what it names; the module runs as if it had been started by itself."""
    _, _, descriptor, module, *arguments = sys.argv
    threading.Thread(target=follow, args=(int(descriptor),), name="tether", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def follow(owner: int) -> None:
    """End this process with the owner's, of which this is a pidfd."""
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.poll()
    os._exit(0)


def make_arguments(owner: int, module: str, *arguments: str) -> list[str]:
    """What follows `python -P -c` for a process that is tethered to this one by the pidfd `owner`."""
    return [BOOT, json.dumps([entry for entry in sys.path if entry]), str(owner), module, *arguments]
