"""The times of a worker's recoveries, and which of its steps are repeated."""

from worker_runtime.rendezvous import (
    MOST_RECOVERIES,
    RECOVERIES,
    RECOVERY_TIMES,
    RECOVERY_VALUES,
)

_GENERATION, _REFORM, _STATE, _REPLAY = range(RECOVERY_VALUES)


class Progress:
    """The steps since the last commit. A restored state is that of the commit, and its steps are taken again.

    repeats: the next step was taken before.
    """

    def __init__(self) -> None:
        self._taken = 0  # since the commit, or since its state was restored
        self._reached = 0  # the most that were taken since the commit

    @property
    def repeats(self) -> bool:
        """See the class."""
        return self._taken < self._reached

    def count_step(self) -> bool:
        """Count a step; return whether it was taken before."""
        self._taken += 1
        if self._taken <= self._reached:
            return True
        self._reached = self._taken
        return False

    def note_commit(self) -> None:
        """Note that the state is saved as it is."""
        self._reached -= self._taken
        self._taken = 0

    def note_restored(self) -> None:
        """Note that the state is that of the last commit."""
        self._taken = 0


class RecoveryTimes:
    """Writes the latest recoveries into an account's memory, each as soon as its generation is known.

    Args:
        memory: the memory of the account.
    """

    def __init__(self, memory: "memoryview[float]") -> None:
        self._memory = memory
        self._place = RECOVERY_TIMES

    def add(self, generation: int, reform_seconds: float) -> None:
        """Add a recovery; its other times follow."""
        memory = self._memory
        number = int(memory[RECOVERIES])
        place = self._place = RECOVERY_TIMES + number % MOST_RECOVERIES * RECOVERY_VALUES
        memory[place + _GENERATION], memory[place + _REFORM] = generation, reform_seconds
        memory[place + _STATE] = memory[place + _REPLAY] = 0.0
        memory[RECOVERIES] = number + 1

    def note_state(self, seconds: float) -> None:
        """Note how long the latest has taken to restore the state."""
        self._memory[self._place + _STATE] = seconds

    def note_replay(self, seconds: float) -> None:
        """Note how long the latest has repeated steps."""
        self._memory[self._place + _REPLAY] = seconds
