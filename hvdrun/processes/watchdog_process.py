"""`python -m hvdrun.processes.watchdog_process ORIGIN [FOLDER...]`: kills what a killed agent leaves.

Its standard input is a pipe from the agent, which writes a line `agent PID STARTED` for itself, `session PID STARTED`
for each worker that it starts, and `end PID` for each that has ended. An agent that ends kills its watchdog, so the end
of the pipe means that the agent was killed. Then the watchdog kills the workers' sessions, all other processes with the
agent's origin, the descendants of both, and those that it saw below the agent. It removes the folders. hvdrun has a
watchdog for its discovery script.

After a line `lease SECONDS` the watchdog also kills an agent that is stopped (SIGSTOP) for longer than that. A stopped
agent sends no reports, so the server counts its host as lost; and it cannot end its workers, which would train on
alone. The watchdog kills it a little later than the lease, when the server has counted the host as lost.

Once a second it looks at the processes below the agent: a daemon that has left its session and dropped its environment
is known only by its ancestors, which it loses with the agent. Such a process is missed where it was started after the
last look.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from hvdrun.startup.early import STOPPING, prefer_own_packages

if __name__ == "__main__":
    prefer_own_packages()

from hvdrun.processes import processes
from hvdrun.processes.processes import KillLoop, Process
from hvdrun.processes.stopped import STOPPED, StoppedProcesses

_FOR_THE_AGENT = (*STOPPING, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LIMIT_SECONDS = 5.0
LOOK_SECONDS = 1.0
STOPPED_LOOK_SECONDS = 0.5
MARGIN_SECONDS = 2.0  # beyond the server's limit, so that the server acts first, on a busy machine too
_LOOKS_COST_AT_MOST = 0.01  # of the time: there may be many thousand threads to look at
_EXIT_SECONDS = 1.0  # between the end of a killed agent's pipe and its own
_PAUSE_SECONDS = 0.02
_CLEAN_LOOKS = 3  # a process may be between fork and exec while one looks
_CHUNK_BYTES = 65_536


def main() -> None:
    """Watch until the agent is killed, and clean up."""
    # A scheduler signals all processes.
    for number in _FOR_THE_AGENT:
        signal.signal(number, signal.SIG_IGN)

    origin, *folders = sys.argv[1:]
    tree = ProcessTree(origin)
    loop = WatchLoop(tree)
    for line in listen(0, loop):
        match line.split():
            case ["agent", pid, started]:
                tree.agent = int(pid), int(started)
                tree.look()
            case ["lease", seconds]:
                loop.stopped = StoppedProcesses(float(seconds) + MARGIN_SECONDS, states=STOPPED)
            case ["session", pid, started]:
                tree.sessions[int(pid)] = int(started)
            case ["end", pid]:
                tree.sessions.pop(int(pid), None)
            case _:
                pass

    clear(tree)
    for folder in folders:
        shutil.rmtree(Path(folder), ignore_errors=True)


class ProcessTree:
    """The known processes of one agent: those that it has started, and no others.

    Args:
        origin: the agent's origin; see `processes`.

    sessions: the workers' sessions, each leader's pid and when it started.
    agent: its pid and when it started.
    """

    def __init__(self, origin: str) -> None:
        self.sessions: dict[int, int] = {}
        self.agent: tuple[int, int] | None = None
        self._origin = origin
        self._seen: dict[int, int] = {}  # pid -> when it started

    def has_agent(self) -> bool:
        """Whether the agent lives."""
        return self.agent is not None and _lives(*self.agent)

    def look(self) -> None:
        """Record the processes below the agent now; live ones that were seen before stay known."""
        if self.agent is None or not self.has_agent():
            return
        seen = {process.pid: process.started for process in processes.descendants(self.agent[0])}
        # Else another process may have got its pid.
        if self.has_agent():
            before = {pid: started for pid, started in self._seen.items() if _lives(pid, started)}
            self._seen = before | seen

    def find(self) -> list[Process]:
        """The job's live members and their descendants, without this process.

        The oldest come first: a shell whose child is killed first would continue with its next command. A process that
        was only seen below the agent is no member while the agent lives, as it does when it has just closed the pipe.
        """
        others = {process.pid: process for process in processes.running() if process.pid != os.getpid()}
        seen = {}
        if not self.has_agent():
            seen = self._seen
        since = 0
        if self.agent is not None:
            since = self.agent[1]

        found = {
            process.pid
            for process in others.values()
            if seen.get(process.pid) == process.started
            or is_in_one_of(self.sessions, process)
            or processes.comes_from(process, self._origin, since)
        }

        children = defaultdict(list)
        for process in others.values():
            children[process.parent].append(process.pid)
        waiting = list(found)
        while waiting:
            new = set(children[waiting.pop()]) - found
            found |= new
            waiting += new
        return sorted((others[pid] for pid in found), key=lambda process: (process.started, process.pid))


def is_in_one_of(sessions: dict[int, int], process: Process) -> bool:
    """Whether the process is in one of the sessions, and not in a later session with the same number."""
    started = sessions.get(process.session)
    if started is None:
        return False
    leader = processes.look(process.session)
    return leader is None or leader.started == started


def _lives(pid: int, started: int) -> bool:
    process = processes.look(pid)
    return process is not None and process.started == started and not process.is_dead


class WatchLoop:
    """Looks at the process tree, and at the agent, at intervals.

    Args:
        tree: the processes.
        clock: monotonic, in seconds.

    stopped: detects that the agent is stopped; None where it may be.
    """

    def __init__(self, tree: ProcessTree, clock: Callable[[], float] = time.monotonic) -> None:
        self.stopped: StoppedProcesses | None = None
        self._tree = tree
        self._clock = clock
        self._look_at = clock() + LOOK_SECONDS

    def look(self) -> float:
        """Look where that is due; returns the seconds until the next look."""
        now = self._clock()
        if now >= self._look_at:
            self._tree.look()
            cost_seconds = self._clock() - now
            self._look_at = now + max(LOOK_SECONDS, cost_seconds / _LOOKS_COST_AT_MOST)
        left_seconds = max(0.0, self._look_at - self._clock())
        if self.stopped is None or self._tree.agent is None:
            return left_seconds
        pid, started = self._tree.agent
        agent = self.stopped.find([pid]).get(pid)
        if agent is not None and agent.started == started:
            processes.kill(agent, signal.SIGKILL)  # which closes its pipe
        return min(left_seconds, STOPPED_LOOK_SECONDS)


def listen(descriptor: int, loop: WatchLoop) -> Iterator[str]:
    """The lines from the pipe, until its end; the loop looks meanwhile."""
    pending = b""
    while True:
        if not select.select([descriptor], [], [], loop.look())[0]:
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


def clear(tree: ProcessTree) -> None:
    """Kill what is left of a killed agent's process tree, until nothing is found."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while tree.has_agent() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    loop = KillLoop(LIMIT_SECONDS, _CLEAN_LOOKS)
    while not loop.is_done:
        loop.kill(tree.find())
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    os.umask(0o077)
    main()
