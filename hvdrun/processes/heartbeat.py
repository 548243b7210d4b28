"""Whether an agent has been stopped (SIGSTOP) for so long that it is given up, as its guardian sees it.

A stopped agent sends no reports, so the server counts its host as lost. It cannot end its workers
either, which would train on, alone and for ever. So its guardian ends it, and them, a little later: by then the others
have been told that it fell silent.
"""

import time
from collections.abc import Callable

from hvdrun.processes import processes
from hvdrun.processes.processes import Process

LOOK_SECONDS = 0.5
MARGIN_SECONDS = 2.0  # beyond what the server allows, so that the server is the first to know, on a busy machine too
_STOPPED = "T"
_SLEEP_SHARE = 0.5  # of that time between two looks: this process did not run meanwhile, and nor did the agent
_LEAST_SLEEP_SECONDS = 1.5  # a look may be late on a busy machine


class Heartbeat:
    """Looks at one agent.

    silence_seconds: for how long the server lets it be silent.
    """

    def __init__(
        self,
        silence_seconds: float,
        *,
        look: Callable[[int], Process | None] = processes.look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silence_seconds = silence_seconds
        self._look_at = look
        self._clock = clock
        self._looked = clock()
        self._since: float | None = None

    def find_given_up(self, pid: int, started: int) -> Process | None:
        """The agent, if it has stood still for longer than that; to be asked often."""
        now = self._clock()
        if now - self._looked > max(_SLEEP_SHARE * self._silence_seconds, _LEAST_SLEEP_SECONDS):
            self._since = None
        self._looked = now
        process = self._look_at(pid)
        if process is None or process.started != started or process.state != _STOPPED:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        return process if now - self._since > self._silence_seconds + MARGIN_SECONDS else None
