"""The check that the ranks' replicas are equal: `--check-replicas`.

Each rank computes a checksum of every parameter, and of the optimizer's state for it. An allreduce at the start of a
step compares a checksum of them all: the ranks agree where the maximum and the minimum are equal. Where they do not, a
second allreduce collects all checksums. The error names the parameter, the step since which the replicas differ, and
the ranks that differ from most others.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import ReplicasDifferError, WrongArgumentError
from worker_runtime.reduction.checksums import fold, has_bits, make_checksum, make_state_checksum, split, stack
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.parameters import NamedParameters
from worker_runtime.rendezvous import CHECK_REPLICAS

REPLICAS = "allreduce.{}.replicas"  # the operation's name, without the optimizer's
_BY_RANK = "allreduce.{}.replicas.by_rank"
_LARGEST = (1 << 32) - 1  # of half a checksum: neither it nor its complement is less than a joined rank's zeros
_FEWEST = 3  # ranks of which most can be right

ListState = Callable[[torch.Tensor], Mapping[str, object]]


class ReplicaCheck:
    """Compares an optimizer's parameters and state over the ranks before every `interval`-th step.

    Args:
        list_parameters: returns the optimizer's parameters with their names, in the same order on all ranks.
        interval: the number of steps between two comparisons.
        list_state: returns the optimizer's state for a parameter; by default none is compared.
    """

    def __init__(
        self,
        list_parameters: Callable[[], NamedParameters],
        interval: int,
        list_state: ListState = lambda _: {},
    ) -> None:
        self._list_parameters = list_parameters
        self._interval = interval
        self._list_state = list_state
        self._steps = 0
        self._names: Sequence[str] = ()
        self._sums = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._handle: Handle[list[torch.Tensor]] | None = None

    def begin(self) -> None:
        """Start counting steps in a new generation."""
        self._steps = 0
        self._handle = None

    def withdraw(self) -> None:
        """Forget a submitted comparison; the next step repeats it."""
        self._handle = None

    def fail_others(self, comm: Communicator, error: BaseException) -> None:
        """After a failure of the step here, make the other ranks' comparison fail, if it is due and not submitted."""
        if self._handle is None and self._is_due:
            comm.fail_others(REPLICAS, error)

    @property
    def _is_due(self) -> bool:
        return self._steps % self._interval == 0

    def ask(self, comm: Communicator) -> None:
        """Submit the comparison, if it is due in this step and not submitted yet."""
        if not self._is_due or self._handle is not None:
            return
        named = list(self._list_parameters())
        self._names = [name for name, _ in named]
        self._sums = self._make_sums([parameter for _, parameter in named])
        own = split(fold(self._sums))
        self._handle = comm.engine.submit(_make_maximum(comm, REPLICAS, [own, _LARGEST - own]), at_once=True)

    def finish(self, comm: Communicator) -> None:
        """Wait for the comparison, if one was submitted.

        Raises:
            ReplicasDifferError: a parameter or its state differs between ranks.
            HorovodInternalError: the comparison failed.
        """
        if self._handle is None:
            return
        (found,) = comm.engine.wait(self._handle)
        greatest, complements = found.view(2, -1)
        if not torch.equal(greatest, _LARGEST - complements):
            raise self._explain(comm)

    def count_step(self) -> None:
        """Count a completed step. A revoked one does not count: only some ranks may have finished its comparison."""
        self._handle = None
        self._steps += 1

    def _make_sums(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The checksums of all parameters, and then those of their states; 0 where there are no values to compare."""
        zero = torch.zeros((), dtype=torch.int64, device="cpu")
        values = [make_checksum(each) if has_bits(each) else zero for each in parameters]
        states = [make_state_checksum(self._list_state(each)) for each in parameters]
        return stack([*values, *(zero if each is None else each for each in states)])

    def _explain(self, comm: Communicator) -> ReplicasDifferError:
        """The error of different replicas, from the checksums of all ranks, which it collects."""
        own = split(self._sums).flatten()
        table = torch.zeros((comm.members.size, 1 + own.numel()), dtype=torch.int64, device="cpu")
        table[comm.members.position, 0] = 1  # this rank has not joined
        table[comm.members.position, 1:] = own
        operation = _make_maximum(comm, _BY_RANK, [table])
        (found,) = comm.engine.run(operation)

        present = [rank for rank, row in zip(comm.members.ranks, found.view(table.shape), strict=True) if row[0]]
        rows = [row[1:].view(2, -1, 2) for row in found.view(table.shape) if row[0]]
        name, odd = _find_difference(self._names, rows)
        equal_step = max(0, self._steps - self._interval)
        return ReplicasDifferError(name, self._steps, equal_step, tuple(present[each] for each in odd), len(present))


def _find_difference(names: Sequence[str], rows: Sequence[torch.Tensor]) -> tuple[str, list[int]]:
    """The first parameter that differs, and the places of the rows that differ from most others; none where none do."""
    for kind, prefix in enumerate(("", "the optimizer's state of ")):
        for place, name in enumerate(names):
            values = [tuple(row[kind, place].tolist()) for row in rows]
            (most, count), *others = Counter(values).most_common()
            if others:
                is_clear = len(rows) >= _FEWEST and count > len(rows) - count
                return prefix + name, [each for each, value in enumerate(values) if is_clear and value != most]
    return "a parameter", []


def _make_maximum(comm: Communicator, part: str, parts: Sequence[torch.Tensor]) -> Allreduce:
    values = torch.cat([each.flatten() for each in parts])
    operation = Allreduce([values], Combination(Reduction.MAX), comm.members, part.format(comm.name))
    operation.is_of_step = True
    return operation


def read_interval(environment: Mapping[str, str]) -> int:
    """The value of HVD_CHECK_REPLICAS: the number of steps between two comparisons; 0 for no check.

    Raises:
        WrongArgumentError: the value is not a whole number.
    """
    text = environment.get(CHECK_REPLICAS, "").strip()
    if text and not text.isdecimal():
        raise WrongArgumentError(
            f"{CHECK_REPLICAS}={text!r} is not a number of steps; for example, 1 compares the replicas before each step"
        )
    return int(text or 0)
