"""`python -c BOOT PATH PID MODULE ...`: runs a module of ours in a process that ends with its parent, the owner.

The end of a pipe does not tell of that: a forked child of the owner, such as a DataLoader's worker, holds the other end
open as well and may outlive its parent. So a thread waits for the end of the owner itself.
"""

import json
import os
import runpy
import sys
import threading

from worker_runtime.startup.process_end import wait_for_end

# What the owner's search path has and this one's lacks is searched last, so that nothing there hides a module of
# Python's own.
BOOT = "import sys, json; sys.path += json.loads(sys.argv[1]); from worker_runtime.startup.tether import main; main()"


def main() -> None:
    """Read the command line, and become what it names; the module runs as if it had been started by itself."""
    _, _, owner, module, *arguments = sys.argv
    threading.Thread(target=follow, args=(int(owner),), name="tether", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def follow(owner: int) -> None:
    """End this process with its parent."""
    if os.getppid() == owner:
        wait_for_end(owner)
    os._exit(0)


def make_arguments(module: str, *arguments: str) -> list[str]:
    """What follows `python -P -c` for a child that is tethered to this process."""
    return [BOOT, json.dumps([entry for entry in sys.path if entry]), str(os.getpid()), module, *arguments]
