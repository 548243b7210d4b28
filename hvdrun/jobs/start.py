"""When a job has started: all its workers have joined, or, of a program that never joins, all its processes run."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hvdrun.processes.python_command import find_interpreter, list_sources, names_hvd, parse, without_flags
from hvdrun.startup.paths import open_regular
from rendezvous.core.losses import unheard_hosts
from rendezvous.core.model import Worker
from rendezvous.core.state import State

_PERIOD_SECONDS = 0.05


class StartWatch:
    """Tells when the job has started.

    Args:
        note: is called once, then; None where nobody waits.
        expects_init: the program names a package with `init()`.
        patience_seconds: how long no worker may join, when all processes run, until it counts as one that never does.
        clock: the time in seconds.
    """

    def __init__(
        self,
        note: Callable[[], None] | None = None,
        *,
        expects_init: bool = False,
        patience_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note = note
        self._patience_seconds = patience_seconds if expects_init else 0.0
        self._clock = clock
        self._all_run_since: float | None = None
        self._running: set[Worker] = set()

    @property
    def is_awaited(self) -> bool:
        """Somebody waits, and the job has not started yet."""
        return self._note is not None

    async def run(self, read_state: Callable[[], State]) -> None:
        """Look at the state of the job until it has started."""
        while self.is_awaited:
            self.look(read_state())
            await asyncio.sleep(_PERIOD_SECONDS)

    def resume(self, state: State, ago_seconds: float | None = None) -> None:
        """Go on with the state of a job that had begun before. Workers of agents that had not begun may start now.

        Args:
            state: of the job.
            ago_seconds: how long ago it began, where somebody may still wait for its start; None where it was resumed.
        """
        had_started = state.generation is not None or state.rounds > 0
        if not had_started and (ago_seconds is not None or unheard_hosts(state)):
            heard = {host for host in state.hosts if state.last_heard[host] is not None}
            workers = [each.worker for each in state.workers.values()]
            self._running |= {each for each in workers if each.slot.host in heard or each.slot.host not in state.hosts}
            self._patience_seconds = max(0.0, self._patience_seconds - (ago_seconds or 0.0))
        else:
            self._tell()

    def note_running(self, worker: Worker) -> None:
        """Note that a worker's process runs."""
        self._running.add(worker)

    def look(self, state: State) -> None:
        """Tell if the job, with this state, has started."""
        if self._note is None or state.outcome is not None:
            return
        if self._all_run_since is None and 0 < len(state.workers) <= len(self._running):
            self._all_run_since = self._clock()
        never_joins = (
            self._all_run_since is not None
            and not state.waiting
            and self._clock() - self._all_run_since >= self._patience_seconds
        )
        if state.generation is not None or never_joins:
            self._tell()

    def _tell(self) -> None:
        if self._note is not None:
            self._note()
            self._note = None


def expects_init(command: tuple[str, ...], directory: Path) -> bool:
    """Whether the source of a Python command names a package with `init()`, as far as this machine has it."""
    if find_interpreter(command) is None:
        return False
    command = without_flags(command)
    if command[1:2] == ("-c",):
        return names_hvd(" ".join(command[2:3]).encode(errors="surrogateescape"))
    python = parse(command)
    if python is None:
        return False
    for source in list_sources(python):
        with suppress(OSError), open_regular(directory / source) as file:  # it lies elsewhere
            return names_hvd(file.read())
    return False
