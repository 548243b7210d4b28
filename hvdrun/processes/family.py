"""Whom a guardian ends when its agent was killed: all that the agent has started, and nobody else."""

import os
from collections import defaultdict

from hvdrun.processes import processes
from hvdrun.processes.processes import Process


class Family:
    """The processes of one agent, as far as they are known.

    sessions: the workers' sessions, each leader's pid and when it started.
    head: the agent's pid and when it started.
    """

    def __init__(self, origin: str) -> None:
        self.sessions: dict[int, int] = {}
        self.head: tuple[int, int] | None = None
        self._origin = origin
        self._seen: dict[int, int] = {}  # pid -> when it started

    def has_its_head(self) -> bool:
        """The agent lives."""
        return self.head is not None and _lives(*self.head)

    def look(self) -> None:
        """See who is below the agent now; who was seen before and lives stays known."""
        if self.head is None or not self.has_its_head():
            return
        seen = {process.pid: process.started for process in processes.descendants(self.head[0])}
        if self.has_its_head():  # else they may be somebody else's, who took over the number
            before = {pid: started for pid, started in self._seen.items() if _lives(pid, started)}
            self._seen = before | seen

    def find(self) -> list[Process]:
        """Its members that live now, and what descends from them; not this process.

        The oldest come first: a shell whose child is killed before it would go on with its next command.

        Who was only seen below the agent is no member while the agent lives: it has let go of its guardian then.
        """
        others = {process.pid: process for process in processes.running() if process.pid != os.getpid()}
        seen = {} if self.has_its_head() else self._seen
        found = {
            process.pid
            for process in others.values()
            if seen.get(process.pid) == process.started
            or is_in_one_of(self.sessions, process)
            or processes.comes_from(process, self._origin)
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
    """The process is in one of the sessions, and not in that of a stranger who took over a leader's number."""
    started = sessions.get(process.session)
    if started is None:
        return False
    leader = processes.look(process.session)
    return leader is None or leader.started == started


def _lives(pid: int, started: int) -> bool:
    process = processes.look(pid)
    return process is not None and process.started == started and not process.is_dead
