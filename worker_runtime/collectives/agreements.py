"""Operations that move no tensors: that they are released is already what they are for.

Every member has asked for them when they are released, and all run their releases in one order.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import torch

from worker_runtime.coordination.operation import Members, Operation, ResultT_co
from worker_runtime.coordination.ordering.questions import Kind, Question, Release, Signature
from worker_runtime.groups.torch_groups import TorchGroup, Work

_MAX_REASON = 500  # characters


class _Agreement(Operation[ResultT_co]):
    _can_be_repeated = True

    def __init__(
        self,
        kind: Kind,
        among: Members,
        name: str,
        sizes: tuple[int, ...] = (),
        note: str = "",
        *,
        root: int | None = None,
    ) -> None:
        self.among = among
        self.question = Question(among.number, name, Signature(kind, note=note, root=root))
        self.sizes = sizes

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Nothing is lost by asking again, unless it was about certain ranks; see `Operation`."""
        del is_begun
        return "" if self._can_be_repeated else "it was about ranks that are numbered anew"

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        del ranks
        if not self._can_be_repeated:
            raise NotImplementedError
        renewed = copy(self)
        renewed.among = among
        renewed.question = self.question._replace(process_set=among.number)
        return renewed

    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """Nothing is left to do."""
        del group, terms
        return ()


class Barrier(_Agreement[None]):
    """Wait until all members have come here.

    Args:
        among: the ranks.
        name: as it travels, the same on all ranks.
    """

    def __init__(self, among: Members, name: str = "barrier") -> None:
        super().__init__(Kind.BARRIER, among, name)

    def finish(self, terms: Release, payload: memoryview) -> None:
        """All have come."""


class Join(_Agreement[int]):
    """This rank has no more data; the result is the rank that joined last.

    Args:
        among: all ranks of the job.
        name: as it travels, the same on all ranks.
        device: where this rank's neutral elements lie for operations on CUDA; None where the others use none.
    """

    def __init__(self, among: Members, name: str = "join", device: torch.device | None = None) -> None:
        super().__init__(Kind.JOIN, among, name)
        self.device = device

    def finish(self, terms: Release, payload: memoryview) -> int:
        """The rank that joined last; alone, this rank."""
        del payload
        return terms.value if len(terms.members) > 1 else terms.members[0]


class AddSet(_Agreement[int]):
    """Make a process set; the result is its number.

    Args:
        ranks: its members' ranks in the job, the same on all ranks; sorted here.
        among: all ranks of the job.
        name: as it travels, the same on all ranks.
        number: that the set had in the generation before; None for a new set.

    Raises:
        ValueError: there are none, one stands twice, or one is no rank of the job.
    """

    _can_be_repeated = False

    def __init__(
        self, ranks: Sequence[int], among: Members, name: str = "add_process_set", number: int | None = None
    ) -> None:
        members = tuple(sorted(ranks))
        if not members or len(set(members)) != len(members) or not set(members) <= set(among.ranks):
            raise ValueError(
                f"a process set cannot have the ranks {list(members)}; give some of 0 to {among.size - 1}, each once"
            )
        super().__init__(Kind.ADD_SET, among, name, members, f"ranks {list(members)}", root=number)

    def finish(self, terms: Release, payload: memoryview) -> int:
        """The number."""
        del payload
        return terms.value


class RemoveSet(_Agreement[None]):
    """Forget a process set, after what was released before in it.

    Args:
        number: of the set, not that of all ranks.
        among: all ranks of the job.
        name: as it travels, the same on all ranks.

    Raises:
        ValueError: it is the set of all ranks.
    """

    _can_be_repeated = False

    def __init__(self, number: int, among: Members, name: str = "remove_process_set") -> None:
        if number == among.number:
            raise ValueError(f"process set {number} has all ranks and cannot be removed")
        super().__init__(Kind.REMOVE_SET, among, name, (number,), f"process set {number}")

    def finish(self, terms: Release, payload: memoryview) -> None:
        """It is gone."""


class Failed(_Agreement[None]):
    """Stands for a call that has failed on this rank before it could ask: no rank runs it, and all get the reason.

    Args:
        among: the ranks.
        name: under which the others ask.
        reason: the error.
        is_of_step: see `Operation`.

    followers: later calls of this name that have failed, too: each is asked when the one before it is answered.
    """

    def __init__(self, among: Members, name: str, reason: str, *, is_of_step: bool = False) -> None:
        super().__init__(Kind.FAIL, among, name, note=reason[:_MAX_REASON])
        self.is_of_step = is_of_step
        self.followers: list[Failed] = []

    def finish(self, terms: Release, payload: memoryview) -> None:
        """Alone: there is no other rank."""


class Commit(_Agreement[None]):
    """Wait until all members have done their steps so far; one that has joined does not keep the others waiting.

    Args:
        among: the ranks.
        number: which commit round this is in their set, counted from 1; the same on all ranks.
        name: as it travels, the same on all ranks.
    """

    is_of_step = True

    def __init__(self, among: Members, number: int = 1, name: str = "commit") -> None:
        super().__init__(Kind.COMMIT, among, name)
        self.number = number

    def finish(self, terms: Release, payload: memoryview) -> None:
        """They have."""
