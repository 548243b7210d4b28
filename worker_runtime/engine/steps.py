"""How far the ranks of a job have trained together, as this rank knows it; through all generations."""

from collections import Counter
from collections.abc import Sequence

from worker_runtime.coordination.ordering.questions import GLOBAL_SET


class Steps:
    """Of one engine.

    Args:
        rank: of this worker.
        size: of the job.

    origin: this worker's rank when the engine was made.
    lineage: the present members, in the order of their ranks, by the ranks that they had when the engine was made.
    committed: how many steps all ranks have committed, and the lineage of those who took part in the last one; also of
        the last rank that is left, which waits for nobody.
    rounds: the commit rounds that were completed, by set.
    has_stepped: all ranks have completed a step.
    is_stopping: a stop notice for the job had come when the last of these was released; the same on all ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.origin = rank
        self.lineage = tuple(range(size))
        self.committed = 0, self.lineage
        self.rounds: Counter[int] = Counter()
        self.has_stepped = self.is_stopping = False

    def note_step(self, process_set: int, *, is_stopping: bool) -> None:
        """A step of a set is complete on this rank.

        Args:
            process_set: its number.
            is_stopping: a stop notice for the job had come before the step's last release.
        """
        if process_set == GLOBAL_SET:
            self.has_stepped = True
            self.is_stopping |= is_stopping

    def note_commit(self, process_set: int, ranks: Sequence[int]) -> None:
        """All ranks of the job, or of one of its sets, have committed a step; by the ranks of the generation."""
        if process_set == GLOBAL_SET:
            self.committed = self.committed[0] + 1, tuple(self.lineage[rank] for rank in ranks)
