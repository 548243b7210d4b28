"""The check that the ranks' parameters are equal: HVD_CHECK_REPLICAS.

Each rank computes a checksum of every parameter. An allreduce at the start of a step compares them: the ranks agree
where the maximum and the minimum are equal. The error names the step since which the replicas differ.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn.parameter import is_lazy

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import ReplicasDifferError, WrongArgumentError
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.parameters import NamedParameters

CHECK_REPLICAS = "HVD_CHECK_REPLICAS"
REPLICAS = "allreduce.{}.replicas"  # the operation's name, without the optimizer's
# Bits of a checksum: it and its complement fit into int64, and are not less than a joined rank's zeros.
_BITS = 62
_ALL = (1 << _BITS) - 1


class ReplicaCheck:
    """Compares an optimizer's parameters over the ranks before every `interval`-th step.

    Args:
        list_parameters: returns the optimizer's parameters with their names, in the same order on all ranks.
        interval: the number of steps between two comparisons.
    """

    def __init__(self, list_parameters: Callable[[], NamedParameters], interval: int) -> None:
        self._list_parameters = list_parameters
        self._interval = interval
        self._steps = 0
        self._names: Sequence[str] = ()
        self._handle: Handle[list[torch.Tensor]] | None = None

    def begin(self) -> None:
        """Start counting steps in a new generation."""
        self._steps = 0
        self._handle = None

    def withdraw(self) -> None:
        """Forget a submitted comparison; the next step repeats it."""
        self._handle = None

    def fail(self, comm: Communicator, error: BaseException) -> None:
        """Report a failed step: make the other ranks' comparison fail, if it is due and this rank did not submit it."""
        if self._handle is None and self._is_due:
            comm.fail(REPLICAS, error)

    @property
    def _is_due(self) -> bool:
        return self._steps % self._interval == 0

    def ask(self, comm: Communicator) -> None:
        """Submit the comparison, if it is due in this step and not submitted yet."""
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
        """Wait for the comparison, if one was submitted.

        Args:
            comm: the communicator.

        Raises:
            ReplicasDifferError: a parameter differs between ranks.
            HorovodInternalError: the comparison failed.
        """
        if self._handle is not None:
            (found,) = comm.engine.wait(self._handle)
            greatest, complements = found.view(2, -1).tolist()
            for name, most, complement in zip(self._names, greatest, complements, strict=True):
                if most != _ALL - complement:
                    raise ReplicasDifferError(name, self._steps, max(0, self._steps - self._interval))

    def count_step(self) -> None:
        """Count a completed step. A revoked one does not count: only some ranks may have finished its comparison."""
        self._handle = None
        self._steps += 1


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


def _make_checksum(parameter: torch.Tensor) -> int:
    if is_lazy(parameter):
        return 0
    flat = parameter.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> (64 - _BITS)
