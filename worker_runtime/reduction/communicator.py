"""Where a reducer communicates: the engine of one generation, and the ranks among which it averages."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Communicator:
    """The ranks that average the same gradients, seen from one of them.

    name: that no other optimizer has; the same on all ranks, which make those of one label in the same order.
    is_elastic: the job outlives its workers: local gradients are kept until their step is committed.
    """

    engine: Engine
    members: Members
    name: str
    is_elastic: bool

    @classmethod
    def create(cls, engine: Engine, process_set: int, label: str = "") -> "Communicator | None":
        """One under a new name; None where this rank is alone in the set, or no member.

        Raises:
            ValueError: there is no such process set.
        """
        ranks = engine.process_sets.list_ranks(process_set)
        if engine.rank not in ranks or len(ranks) == 1:
            return None
        members = engine.find_members(process_set, "DistributedOptimizer")
        return cls(engine, members, _make_name(engine, process_set, label), engine.is_elastic)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its set, whose observations decide where one rank's must."""
        return self.members.position == 0

    def fail(self, part: str, error: BaseException) -> None:
        """Have the others' next operation of a kind and name refused, since this rank's has failed."""
        self.engine.fail(self.members.number, part.format(self.name), error, is_of_step=True)

    def rebind(self) -> "Communicator | None":
        """The same in the generation that the engine has continued with; None where no other rank is left.

        Raises:
            SetLostError: the process set has lost a member.
        """
        members = self.engine.find_members(self.members.number, "DistributedOptimizer")
        return replace(self, members=members) if members.size > 1 else None

    def commit(self, index: int) -> None:
        """The step is complete; in a job that outlives its workers: wait until all ranks have its results.

        Args:
            index: of the step's last release.

        Raises:
            StepRevokedError: a rank was lost before; the step is to be run again.
        """
        if self.is_elastic:
            self.engine.commit(self.members)
        else:
            self.engine.note_step(self.members.number, index)


def commit_alone(engine: Engine, find_set: Callable[[], int]) -> None:
    """As `Communicator.commit`, where there is none: the only rank that is left makes steps of all ranks too.

    Who has taken part in the last of them decides whose samples are processed; see `sampler.py`.

    Args:
        engine: of the present generation.
        find_set: the number of the process set that steps.
    """
    if engine.is_elastic and engine.size == 1 and find_set() == GLOBAL_SET:
        engine.commit(engine.find_members(GLOBAL_SET, "DistributedOptimizer"))


def _make_name(engine: Engine, process_set: int, label: str) -> str:
    kind = f"optimizer.{label}" if label else "optimizer"
    return f"{kind}.{engine.make_name(kind, None, process_set).removeprefix(f'{kind}.noname.')}"
