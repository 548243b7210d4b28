"""`python -m hvdrun.agent.guardian ORIGIN FOLDER`: outlives the agent, to end what it leaves behind.

Its standard input is a pipe from the agent, which writes a line `session PID STARTED` for each worker that it starts
and `end PID` for each that has ended. The end of the pipe without the word `done` means that the agent was killed: the
workers' sessions, and whatever else has the agent's origin, are killed, and the job's folder is removed.
"""

import os
import shutil
import sys
import time
from collections.abc import Mapping

from hvdrun.search_path import prefer_own_packages

if __name__ == "__main__":
    prefer_own_packages()

from hvdrun.agent import processes
from hvdrun.agent.processes import Process

LIMIT_SECONDS = 5.0
_PAUSE_SECONDS = 0.02
_CLEAN_LOOKS = 3  # a process may be between fork and exec while one looks


def main() -> None:
    """Guard until the agent goes."""
    origin, folder = sys.argv[1:3]
    sessions: dict[int, int] = {}  # leader's pid -> when it started
    for line in sys.stdin:
        match line.split():
            case ["session", pid, started]:
                sessions[int(pid)] = int(started)
            case ["end", pid]:
                sessions.pop(int(pid), None)
            case ["done"]:
                return
            case _:
                pass
    clear(origin, sessions)
    shutil.rmtree(folder, ignore_errors=True)


def clear(origin: str, sessions: Mapping[int, int]) -> None:
    """Kill all that is left of the agent's workers, until nothing more is found."""

    def belongs(process: Process) -> bool:
        return is_in_one_of(sessions, process) or processes.comes_from(process, origin)

    deadline = time.monotonic() + LIMIT_SECONDS
    clean_looks = 0
    while clean_looks < _CLEAN_LOOKS and time.monotonic() < deadline:
        clean_looks = 0 if processes.kill_all(belongs) else clean_looks + 1
        time.sleep(_PAUSE_SECONDS)


def is_in_one_of(sessions: Mapping[int, int], process: Process) -> bool:
    """The process is in one of the sessions, and not in that of a stranger who took over a leader's number."""
    started = sessions.get(process.session)
    if started is None:
        return False
    leader = processes.look(process.session)
    return leader is None or leader.started == started


if __name__ == "__main__":
    os.umask(0o077)
    main()
