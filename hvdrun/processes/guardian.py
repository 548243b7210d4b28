"""`python -m hvdrun.processes.guardian ORIGIN [FOLDER...]`: outlives the agent, to end what it leaves behind.

Its standard input is a pipe from the agent, which writes a line `agent PID STARTED` for itself, `session PID STARTED`
for each worker that it starts and `end PID` for each that has ended. The end of the pipe without the word `done` means
that the agent was killed: the workers' sessions, whatever else has the agent's origin, and whatever descends from these
or was seen below the agent, are killed, and the job's folders are removed. hvdrun has one for its discovery script.

After a line `lease SECONDS` it also kills an agent that is stopped for longer than that, since nobody else would.

Below the agent it looks once a second: a daemon that has left its session and shed its environment is known by nothing
but its ancestors, which it loses with the agent. What was started after the last look and is hidden so well is missed.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hvdrun.startup.search_path import prefer_own_packages

if __name__ == "__main__":
    prefer_own_packages()

from hvdrun.processes import heartbeat, processes
from hvdrun.processes.family import Family
from hvdrun.processes.heartbeat import Heartbeat

LIMIT_SECONDS = 5.0
LOOK_SECONDS = 1.0
_LOOKS_COST_AT_MOST = 0.01  # of the time: there may be many thousand threads to ask
_EXIT_SECONDS = 1.0  # between the end of a killed agent's pipe and its own
_PAUSE_SECONDS = 0.02
_CLEAN_LOOKS = 3  # a process may be between fork and exec while one looks
_CHUNK_BYTES = 65_536


def main() -> None:
    """Guard until the agent goes."""
    origin, *folders = sys.argv[1:]
    family = Family(origin)
    vigil = Vigil(family)
    for line in listen(0, vigil):
        match line.split():
            case ["agent", pid, started]:
                family.head = int(pid), int(started)
                family.look()
            case ["lease", seconds]:
                vigil.heartbeat = Heartbeat(float(seconds))
            case ["session", pid, started]:
                family.sessions[int(pid)] = int(started)
            case ["end", pid]:
                family.sessions.pop(int(pid), None)
            case ["done"]:
                return
            case _:
                pass
    clear(family)
    for folder in folders:
        shutil.rmtree(Path(folder), ignore_errors=True)


class Vigil:
    """Looks at the family, and at its head, from time to time."""

    def __init__(self, family: Family, clock: Callable[[], float] = time.monotonic) -> None:
        self.heartbeat: Heartbeat | None = None
        self._family = family
        self._clock = clock
        self._look_at = clock() + LOOK_SECONDS

    def look(self) -> float:
        """Look at what it is time for; for how many seconds there is nothing to do then."""
        now = self._clock()
        if now >= self._look_at:
            self._family.look()
            cost_seconds = self._clock() - now
            self._look_at = now + max(LOOK_SECONDS, cost_seconds / _LOOKS_COST_AT_MOST)
        left_seconds = max(0.0, self._look_at - self._clock())
        if self.heartbeat is None or self._family.head is None:
            return left_seconds
        agent = self.heartbeat.find_given_up(*self._family.head)
        if agent is not None:
            processes.kill(agent, signal.SIGKILL)  # which closes its pipe
        return min(left_seconds, heartbeat.LOOK_SECONDS)


def listen(descriptor: int, vigil: Vigil) -> Iterator[str]:
    """The lines that come until the end of the pipe; meanwhile the vigil is kept."""
    pending = b""
    while True:
        if not select.select([descriptor], [], [], vigil.look())[0]:
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


def clear(family: Family) -> None:
    """Kill all that is left of a killed agent's family, until nothing more is found."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while family.has_its_head() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    deadline = time.monotonic() + LIMIT_SECONDS
    spare_until = time.monotonic() + processes.CLEANER_SECONDS
    clean_looks = 0
    while clean_looks < _CLEAN_LOOKS and time.monotonic() < deadline:
        members = family.find()
        for member in members:
            if time.monotonic() >= spare_until or not processes.is_cleaner(member):
                processes.kill(member, signal.SIGKILL)
        clean_looks = 0 if members else clean_looks + 1
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    os.umask(0o077)
    main()
