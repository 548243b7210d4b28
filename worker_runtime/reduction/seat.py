"""Where a reducer communicates: the executor of one generation, and the ranks among which it averages."""

from dataclasses import dataclass, replace

from worker_runtime.executor import Executor
from worker_runtime.operation import Members


@dataclass(frozen=True, slots=True)
class Seat:
    """This rank's place among those that average the same gradients.

    name: that no other optimizer has; the same on all ranks, which make their optimizers in the same order.
    is_elastic: the job outlives its workers: local gradients are kept until their step is committed.
    """

    executor: Executor
    members: Members
    name: str
    is_elastic: bool

    @classmethod
    def take(cls, executor: Executor, process_set: int) -> "Seat | None":
        """A place under a new name; None where there is nobody to communicate with: this rank is alone, or no member.

        Raises:
            ValueError: there is no such process set.
        """
        ranks = executor.process_sets.list_ranks(process_set)
        if executor.rank not in ranks or len(ranks) == 1:
            return None
        members = executor.find_members(process_set, "DistributedOptimizer")
        return cls(executor, members, _make_name(executor, process_set), executor.is_elastic)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its set, whose observations decide where one rank's must."""
        return self.members.position == 0

    def renew(self) -> "Seat":
        """The same place under a name that was never used: what was asked under the old one is not waited for."""
        return replace(self, name=_make_name(self.executor, self.members.number))

    def move(self) -> "Seat | None":
        """The same place in the generation that the executor has gone on to; None where nobody else is left.

        Raises:
            SetLostError: the process set has lost a member.
        """
        members = self.executor.find_members(self.members.number, "DistributedOptimizer")
        return replace(self, members=members) if members.size > 1 else None

    def commit(self) -> None:
        """In a job that outlives its workers: wait until all ranks have this step's results.

        Raises:
            StepRevokedError: a rank was lost before; the step is to be run again.
        """
        if self.is_elastic:
            self.executor.commit(self.members)


def _make_name(executor: Executor, process_set: int) -> str:
    number = executor.make_name("optimizer", None, process_set).rpartition(".")[2]
    return f"optimizer.{number}"
