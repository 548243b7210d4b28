"""Comparing the ranks' parameters now and then: whether they are replicas still.

Each rank makes a number of every parameter's bytes, and an optimizer's first operation of a step compares them: all
have the same where the greatest and the least are equal. For programs whose ranks part: it says since when.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn.parameter import is_lazy

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import ReplicasDifferError, WrongArgumentError
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.parameters import NamedParameters

CHECK_REPLICAS = "HVD_CHECK_REPLICAS"
REPLICAS = "allreduce.{}.replicas"  # the operation's name, but for the optimizer's
# Of a checksum: it and its complement fit into int64, and are no less than a joined rank's zeros.
_BITS = 62
_ALL = (1 << _BITS) - 1


class ReplicaCheck:
    """Compares an optimizer's parameters before a step, each time that so many steps have passed.

    Args:
        list_parameters: those of the optimizer, named, in the same order on all ranks.
        interval: how many steps.
    """

    def __init__(self, list_parameters: Callable[[], NamedParameters], interval: int) -> None:
        self._list_parameters = list_parameters
        self._interval = interval
        self._steps = 0
        self._names: Sequence[str] = ()
        self._handle: Handle[list[torch.Tensor]] | None = None

    def begin(self) -> None:
        """The ranks begin anew, perhaps with others."""
        self._steps = 0
        self._handle = None

    def withdraw(self) -> None:
        """The step is over; what was asked in it is asked again in the next."""
        self._handle = None

    def fail(self, comm: Communicator, error: BaseException) -> None:
        """The step has failed: the others are told, if they ask and this rank did not come to it."""
        if self._handle is None and self._is_due:
            comm.fail(REPLICAS, error)

    @property
    def _is_due(self) -> bool:
        return self._steps % self._interval == 0

    def ask(self, comm: Communicator) -> None:
        """Ask whether all have the same, if that is due in this step, and was not asked yet."""
        if not self._is_due or self._handle is not None:
            return
        named = list(self._list_parameters())
        self._names = [name for name, _ in named]
        sums = [_make_checksum(parameter) for _, parameter in named]
        values = torch.tensor([*sums, *(_ALL - each for each in sums)], dtype=torch.int64, device="cpu")
        operation = Allreduce([values], Combination(Reduction.MAX), comm.members, REPLICAS.format(comm.name))
        operation.is_of_step = True
        self._handle = comm.engine.submit(operation, at_once=True)

    def finish(self, comm: Communicator) -> None:
        """The step ends: wait for the answer, if it was asked for.

        Args:
            comm: among whom.

        Raises:
            ReplicasDifferError: not all ranks have the same parameters.
            HorovodInternalError: the comparison failed.
        """
        if self._handle is not None:
            (found,) = comm.engine.wait(self._handle)
            greatest, complements = found.view(2, -1).tolist()
            for name, most, complement in zip(self._names, greatest, complements, strict=True):
                if most != _ALL - complement:
                    raise ReplicasDifferError(name, self._steps, max(0, self._steps - self._interval))
        self._handle = None
        self._steps += 1


def read_interval(environment: Mapping[str, str]) -> int:
    """After how many steps the ranks' parameters are compared; 0 for never.

    Raises:
        WrongArgumentError: the variable is no such number.
    """
    text = environment.get(CHECK_REPLICAS, "").strip()
    if text and not text.isdecimal():
        raise WrongArgumentError(f"{CHECK_REPLICAS}={text!r} is no number of steps; 1 compares the replicas each step")
    return int(text or 0)


def _make_checksum(parameter: torch.Tensor) -> int:
    if is_lazy(parameter):
        return 0
    flat = parameter.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> (64 - _BITS)
