"""Where a reducer communicates: the executor of one generation, and the ranks among which it averages."""

from dataclasses import dataclass, replace

from worker_runtime.collectives import Commit
from worker_runtime.executor import Executor
from worker_runtime.operation import Members


@dataclass(frozen=True, slots=True)
class Seat:
    """This rank's place among those that average the same gradients.

    name: that no other optimizer has; the same on all ranks, which make those of one label in the same order.
    label: that part of the name which the program chooses.
    is_elastic: the job outlives its workers: local gradients are kept until their step is committed.
    """

    executor: Executor
    members: Members
    name: str
    is_elastic: bool
    label: str = ""

    @classmethod
    def take(cls, executor: Executor, process_set: int, label: str = "") -> "Seat | None":
        """A place under a new name; None where there is nobody to communicate with: this rank is alone, or no member.

        Raises:
            ValueError: there is no such process set.
        """
        ranks = executor.process_sets.list_ranks(process_set)
        if executor.rank not in ranks or len(ranks) == 1:
            return None
        members = executor.find_members(process_set, "DistributedOptimizer")
        return cls(executor, members, _make_name(executor, process_set, label), executor.is_elastic, label)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its set, whose observations decide where one rank's must."""
        return self.members.position == 0

    def renew(self) -> "Seat":
        """The same place under a name that was never used: what was asked under the old one is not waited for."""
        return replace(self, name=_make_name(self.executor, self.members.number, self.label))

    def commit(self) -> None:
        """In a job that outlives its workers: wait until all ranks have this step's results."""
        if self.is_elastic:
            self.executor.run(Commit(self.members))


def _make_name(executor: Executor, process_set: int, label: str) -> str:
    kind = f"optimizer.{label}" if label else "optimizer"
    number = executor.make_name(kind, None, process_set).rpartition(".")[2]
    return f"{kind}.{number}"
