"""The communicator of a reducer: the engine of one generation, and the ranks that average."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError


@dataclass(frozen=True, slots=True)
class Communicator:
    """The ranks that average the same gradients, seen from one of them.

    name: the optimizer's unique name, the same on all ranks, which must create optimizers of a label in one order.
    is_elastic: local gradients are kept until their step is complete, to be reduced again after a loss.
    """

    engine: Engine
    members: Members
    name: str
    is_elastic: bool

    @classmethod
    def create(cls, engine: Engine, process_set: int, label: str = "") -> "Communicator | None":
        """Create a communicator with a new name; None where this rank is alone in the set, or not in it.

        Raises:
            ValueError: the process set does not exist.
        """
        ranks = engine.process_sets.list_ranks(process_set)
        if engine.rank not in ranks or len(ranks) == 1:
            return None
        members = engine.find_members(process_set, "DistributedOptimizer")
        return cls(engine, members, _make_name(engine, process_set, label), engine.is_elastic)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its set. Where one rank must decide, the first does."""
        return self.members.position == 0

    def fail_others(self, part: str, error: BaseException) -> None:
        """Make the other ranks' operation of this name fail, because this rank will not submit it."""
        with suppress(HorovodInternalError, ValueError):  # where the set is gone, no rank waits for the operation
            number = self.engine.process_sets.find_again(self.members, self.name).number
            self.engine.fail_others(number, part.format(self.name), error, is_of_step=True)

    def rebind(self) -> "Communicator | None":
        """The communicator in the generation that the engine has continued with; None if this rank is now alone.

        Raises:
            SetLostError: the process set has lost a member.
        """
        members = self.engine.find_members(self.members.number, "DistributedOptimizer")
        if members.size > 1:
            return replace(self, members=members)
        return None

    def complete_step(self, index: int) -> None:
        """Complete the step. In an elastic job this waits until all ranks have its results.

        Args:
            index: the index of the step's last release.

        Raises:
            StepRevokedError: a rank was lost before; the step must run again.
        """
        if self.is_elastic:
            self.engine.complete_step(self.members)
        else:
            self.engine.note_step(self.members.number, index, self.members.ranks)


def complete_step_alone(engine: Engine, find_set: Callable[[], int]) -> None:
    """Complete a step of the only rank of a job, which has no communicator.

    The sampler needs it: the members of the last completed step decide which samples are processed.

    Args:
        engine: the engine of the present generation.
        find_set: returns the number of the process set.
    """
    if engine.size == 1 and find_set() == GLOBAL_SET:
        engine.complete_step(engine.find_members(GLOBAL_SET, "DistributedOptimizer"))


def _make_name(engine: Engine, process_set: int, label: str) -> str:
    kind = "optimizer"
    if label:
        kind = f"optimizer.{label}"
    return f"{kind}.{engine.make_name(kind, None, process_set).removeprefix(f'{kind}.noname.')}"
