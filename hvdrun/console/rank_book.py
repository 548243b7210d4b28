"""Which rank each worker has: what its lines are marked with, and what it is called when it has failed."""

from collections.abc import Callable

from rendezvous.core.messages import Launch
from rendezvous.core.model import Generation, Worker


class RankBook:
    """Knows the rank of every worker that was ever launched.

    It is that of the newest generation; of a worker that is in none yet, or no more, the last one it had or was
    launched with.

    look: the newest generation, None before the first.
    """

    def __init__(self, look: Callable[[], Generation | None]) -> None:
        self._look = look
        self._read: Generation | None = None
        self._ranks: dict[Worker, int] = {}

    def note_launch(self, launch: Launch) -> None:
        """A worker is to be started."""
        self._ranks.setdefault(launch.worker, launch.assignment.rank)

    def rank_of(self, worker: Worker) -> int:
        """The rank of a worker; 0 for one that nobody has launched."""
        generation = self._look()
        if generation is not None and generation is not self._read:
            self._read = generation
            self._ranks.update((member, rank) for rank, member in enumerate(generation.members))
        return self._ranks.get(worker, 0)

    def forget(self, worker: Worker) -> None:
        """Nobody will ask for this one any more."""
        self._ranks.pop(worker, None)
