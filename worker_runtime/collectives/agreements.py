"""Operations without tensors: their release alone is the result.

When such an operation is released, every member has submitted it, and all run their releases in one order.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import torch

from worker_runtime.coordination.operation import Members, Operation, ResultT_co
from worker_runtime.coordination.ordering.requests import Kind, Release, Request, Signature
from worker_runtime.groups.torch_groups import TorchGroup, Work

_MAX_REASON = 500  # characters


class _Agreement(Operation[ResultT_co]):
    """An operation without tensors; the sequencer decides the result.

    Args:
        kind: the kind of the operation.
        among: the ranks.
        name: the full name, the same on all ranks.
        sizes: numbers that the sequencer gets from this rank.
        note: a description that must be the same on all ranks.
        root: a number that must be the same on all ranks; None for none.
    """

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
        self.request = Request(among.number, name, Signature(kind, note=note, root=root))
        self.sizes = sizes

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Return "" unless the operation names ranks, which have changed; see `Operation`."""
        del is_begun
        if self._can_be_repeated:
            return ""
        return "it names ranks that have changed"

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        del ranks
        if not self._can_be_repeated:
            raise NotImplementedError
        renewed = copy(self)
        renewed.among = among
        renewed.request = self.request._replace(process_set=among.number)
        return renewed

    def start(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        """Do nothing."""
        del group, release
        return ()


class Barrier(_Agreement[None]):
    """Waits until all members have submitted it.

    Args:
        among: the ranks.
        name: the full name, the same on all ranks.
    """

    def __init__(self, among: Members, name: str = "barrier") -> None:
        super().__init__(Kind.BARRIER, among, name)

    def finish(self, release: Release, payload: memoryview) -> None:
        """Return nothing: all members have submitted it."""


class Join(_Agreement[int]):
    """Reports that this rank has no more data; the result is the rank that joined last.

    Args:
        among: all ranks of the job.
        device: the device of this rank's neutral elements for operations on CUDA; None without CUDA.
    """

    def __init__(self, among: Members, device: torch.device | None = None) -> None:
        super().__init__(Kind.JOIN, among, "join")
        self.device = device

    def finish(self, release: Release, payload: memoryview) -> int:
        """Return the rank that joined last."""
        del payload
        if len(release.members) > 1:
            return release.value
        return release.members[0]


class AddSet(_Agreement[int]):
    """Adds a process set; the result is its number.

    Args:
        ranks: the members' ranks in the job, in any order, the same on all ranks.
        among: all ranks of the job.
        name: the full name, the same on all ranks.
        number: the number of the set in the former generation; None for a new set.

    Raises:
        ValueError: there are no ranks, one occurs twice, or one is not a rank of the job.
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

    def finish(self, release: Release, payload: memoryview) -> int:
        """Return the set's number."""
        del payload
        return release.value


class RemoveSet(_Agreement[None]):
    """Removes a process set, after all operations of it that were released before.

    Args:
        number: the number of the set.
        among: all ranks of the job.
        name: the full name, the same on all ranks.

    Raises:
        ValueError: it is the set of all ranks.
    """

    _can_be_repeated = False

    def __init__(self, number: int, among: Members, name: str = "remove_process_set") -> None:
        if number == among.number:
            raise ValueError(f"process set {number} has all ranks and cannot be removed")
        super().__init__(Kind.REMOVE_SET, among, name, (number,), f"process set {number}")

    def finish(self, release: Release, payload: memoryview) -> None:
        """Return nothing: the set is removed."""


class Failed(_Agreement[None]):
    """Reports a call that failed on this rank before it was submitted: all ranks' calls of this name get the reason.

    Args:
        among: the ranks.
        name: the full name of the call.
        reason: the error.
        is_of_step: see `Operation`.

    followers: later failed calls of this name; each is submitted when the one before it is answered.
    """

    def __init__(self, among: Members, name: str, reason: str, *, is_of_step: bool = False) -> None:
        super().__init__(Kind.FAIL, among, name, note=reason[:_MAX_REASON])
        self.is_of_step = is_of_step
        self.followers: list[Failed] = []

    def finish(self, release: Release, payload: memoryview) -> None:
        """Return nothing."""


class CommitRound(_Agreement[None]):
    """A commit round: waits until all members have completed their step. Joined ranks need not submit it.

    Args:
        among: the ranks.
        number: the number of the round in the set, from 1; the same on all ranks.
    """

    is_of_step = True

    def __init__(self, among: Members, number: int = 1) -> None:
        super().__init__(Kind.COMMIT, among, "commit")
        self.number = number

    def finish(self, release: Release, payload: memoryview) -> None:
        """Return nothing: all members have completed their step."""
