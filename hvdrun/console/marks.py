"""What stands before each line of a worker: when it came, and who wrote it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from rendezvous.core.messages import Launch
from rendezvous.core.model import Generation, Worker

_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)  # a terminal's foregrounds; red is left to what went wrong
_OWN_COLOUR = 39  # the terminal's; a full reset would end what else the worker has set


@dataclass(frozen=True, slots=True)
class Marks:
    """Which marks a job's output has.

    ranks: `[0] text`.
    hosts: `[0@server1] text`, where ranks are marked.
    times: `2026-01-31T12:00:00.123 [0] text`.
    horovod: `[0]<stdout>:text`, as programs that read horovodrun's output expect it; with times
        `Sat Jan 31 12:00:00 2026[0]<stdout>:text`.
    """

    ranks: bool = True
    hosts: bool = False
    times: bool = False
    horovod: bool = False

    def render(self, rank: int, host: str, now: datetime, *, coloured: bool, stream: str = "stdout") -> bytes:
        """The mark of a worker's line, up to its text; `now` is local time, and each rank has a colour of its own."""
        if self.horovod and self.ranks:
            return f"{now.ctime() if self.times else ''}[{rank}]<{stream}>:".encode()
        time = render_time(now) if self.times else ""
        if not self.ranks:
            return time.encode()
        name = f"[{rank}@{host}]" if self.hosts else f"[{rank}]"
        if coloured:
            name = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{name}\x1b[{_OWN_COLOUR}m"
        return f"{time}{name} ".encode()

    def render_own(self, text: str, now: datetime) -> str:
        """The lines of hvdrun's own `text`, each with its time where lines have one."""
        return "".join(f"{render_time(now) if self.times else ''}{line}" for line in text.splitlines(keepends=True))


class RankTable:
    """The rank of each worker that was ever launched.

    It is the rank in the newest generation. A worker that is in no generation, or has left it, keeps the last rank that
    it had or was launched with.

    look: the newest generation, None before the first.
    """

    def __init__(self, look: Callable[[], Generation | None]) -> None:
        self._look = look
        self._read: Generation | None = None
        self._ranks: dict[Worker, int] = {}

    def note_launch(self, launch: Launch) -> None:
        """This worker is started."""
        self._ranks.setdefault(launch.worker, launch.assignment.rank)

    def rank_of(self, worker: Worker) -> int:
        """The rank of a worker; 0 for one that was never launched."""
        generation = self._look()
        if generation is not None and generation is not self._read:
            self._read = generation
            self._ranks.update((member, rank) for rank, member in enumerate(generation.members))
        return self._ranks.get(worker, 0)

    def forget(self, worker: Worker) -> None:
        """Drop a worker whose rank is not needed any more."""
        self._ranks.pop(worker, None)


def render_time(now: datetime) -> str:
    """What stands before a line that came at this local time."""
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03} "
