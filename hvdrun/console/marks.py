"""What stands before each line of a worker: when it came, and who wrote it."""

from dataclasses import dataclass
from datetime import datetime

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
        if self.horovod:
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


def render_time(now: datetime) -> str:
    """What stands before a line that came at this local time."""
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03} "
