"""The ends of workers, as they are reported: each with what its program has said and what the kernel knows."""

from collections.abc import Callable

from hvdrun.agent.memory_kills import MemoryKills
from rendezvous.core.messages import Exited
from rendezvous.core.model import Worker
from rendezvous.core.outcome import Blame


class Ends:
    """Keeps the ends of one host's workers until the server has recorded them.

    Args:
        take_message: what a worker's program has reported of its failure.
        memory_kills: explains kills.
    """

    def __init__(self, take_message: Callable[[Worker], str], memory_kills: MemoryKills) -> None:
        self._take_message = take_message
        self._memory_kills = memory_kills
        self._blames: dict[Worker, Blame] = {}
        self._evidence: dict[Worker, str] = {}
        self._ended: dict[Worker, Exited] = {}

    def list(self) -> tuple[Exited, ...]:
        """The ends that have not been acknowledged."""
        return tuple(self._ended.values())

    def acknowledge(self, ends: tuple[Exited, ...]) -> None:
        """Drop ends that the server has recorded."""
        for end in ends:
            self._ended.pop(end.worker, None)

    def note_blame(self, worker: Worker, blame: Blame | None) -> None:
        """Keep what made the program of a live worker fail, as it has reported that."""
        if blame is not None:
            self._blames[worker] = blame

    def note_evidence(self, worker: Worker, returncode: int, peak_bytes: int = 0) -> None:
        """Keep what the kernel knows now of a worker that fails, or was just reaped; see `MemoryKills.explain`."""
        self._evidence[worker] = self._memory_kills.explain(returncode, peak_bytes)

    def record(
        self,
        worker: Worker,
        returncode: int,
        error: str | None = None,
        *,
        cannot_start: bool = False,
        has_left: bool = False,
        was_stopped: bool = False,
    ) -> None:
        """Add the end of a worker; the arguments are those of `Exited`."""
        message = ""
        if returncode and not cannot_start:
            message = self._take_message(worker)
        blame, evidence = self._blames.pop(worker, None), self._evidence.pop(worker, "")
        if error is not None or was_stopped:
            # The agent has ended it, or wanted it to end.
            evidence = ""
        self.add(Exited(worker, returncode, error, cannot_start, has_left, was_stopped, message, blame, evidence))

    def add(self, end: Exited) -> None:
        """Add an end of which nothing more is known."""
        self._ended[end.worker] = end
