"""The agents of a job on this machine, also those whose launcher is gone; they are found by their watchdogs."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdrun.processes import processes
from hvdrun.processes.processes import Process
from hvdrun.startup.paths import exists
from rendezvous.bootstrap import name_stop_file

_WATCHDOG = b"hvdrun.processes.watchdog_process"


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """An agent of this user: its process, the name of its job, and its folder."""

    process: Process
    job: str
    folder: Path

    def stop(self) -> None:
        """Ask it for a stop notice to its workers; and where they have had one, to stop them."""
        number = signal.SIGUSR2
        if exists(name_stop_file(self.folder / "agent.sock")):
            number = signal.SIGTERM
        processes.kill(self.process, number)

    @property
    def is_running(self) -> bool:
        """The agent has not ended."""
        return processes.is_running(self.process)


def find_agents() -> Iterator[LocalAgent]:
    """This user's agents on this machine that serve a job."""
    for process in processes.running():
        with suppress(OSError, ValueError):  # it has ended, or is another program
            place = Path("/proc", str(process.pid))
            words = (place / "cmdline").read_bytes().split(b"\0")
            origin, folder, *_ = words[words.index(_WATCHDOG) + 1 :]
            if folder and place.stat().st_uid == os.geteuid() and (agent := _find_agent(process)) is not None:
                job, _, _ = os.fsdecode(origin).rpartition("/")
                yield LocalAgent(agent, job.partition("~")[0], Path(os.fsdecode(folder)))


def _find_agent(watchdog: Process) -> Process | None:
    """The agent that writes to this watchdog; None if the agent has ended, and init is the watchdog's parent.

    Raises:
        OSError: one of the two has just ended.
    """
    parent = processes.look(watchdog.parent)
    pipe = Path(f"/proc/{watchdog.pid}/fd/0").readlink()
    for descriptor in Path(f"/proc/{watchdog.parent}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was just closed
            if descriptor.readlink() == pipe:
                return parent
    return None


def stop_agents(job: str) -> None:
    """Tell what runs of a job on this machine to stop, without its server."""
    for agent in find_agents():
        if agent.job == job:
            agent.stop()
