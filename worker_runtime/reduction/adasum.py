"""Adasum of parameter updates: each rank steps with its local gradients, and the updates are combined.

So an optimizer's state, such as momentum, is computed from local gradients only.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import DeadlockError, StepRevokedError, SupersededError
from worker_runtime.reduction.bucket import Entry
from worker_runtime.reduction.communicator import Communicator, complete_step_alone
from worker_runtime.reduction.finite import FiniteCheck, Scale
from worker_runtime.reduction.parameters import NamedParameters, TrackedParameters
from worker_runtime.reduction.replicas import ReplicaCheck
from worker_runtime.reduction.settings import Compressor

ResultT = TypeVar("ResultT")

_ADASUM = Combination(Reduction.ADASUM)
_STEP = "allreduce.{}.step"  # the operation's name, without the optimizer's


class AdasumReducer:
    """Combines the ranks' updates by Adasum, separately for each parameter.

    Args:
        list_parameters: returns the optimizer's parameters with their names, in the same order on all ranks.
        get_engine: returns the engine of the present generation.
        find_set: returns the number of the process set in the present generation.
        compressor: compresses the updates for the transfer; None for no compression.
        check: compares the replicas in some steps; None for no check.
        finite: examines the gradients before the updates are combined; None for no check.
    """

    def __init__(
        self,
        list_parameters: Callable[[], NamedParameters],
        get_engine: Callable[[], Engine],
        find_set: Callable[[], int],
        compressor: Compressor | None = None,
        check: ReplicaCheck | None = None,
        *,
        finite: FiniteCheck | None = None,
    ) -> None:
        self._tracked = TrackedParameters(list_parameters, {}, self)
        self._superseded: str | None = None
        self._check = check
        self._finite = finite
        self._checks = [each for each in (check, finite) if each is not None]
        self._get_engine = get_engine
        self._find_set = find_set
        self._compressor = compressor
        self._engine: Engine | None = None
        self._generation = 0
        self._communicator: Communicator | None = None
        self._index = -1  # the index of the release of this step's operation
        self._has_submitted = False  # whether this step's operation was submitted
        self._enter()
        self._tracked.update()

    @property
    def has_others(self) -> bool:
        """Whether other ranks take part."""
        return self._communicator is not None

    @property
    def has_local_gradients(self) -> bool:
        """Whether gradients are this rank's own: always, unless it is alone."""
        return self.has_others

    def record_gradient(self, entry: Entry) -> None:
        """Do nothing: gradients stay local. See `Recorder`."""

    def supersede(self, name: str) -> None:
        """See `Recorder`."""
        self._superseded = name
        self._tracked.detach()

    def step(self, move: Callable[[], ResultT]) -> ResultT:
        """Run this rank's optimizer step, and combine its updates with those of the other ranks.

        The floating-point parameters are equal on all ranks before and after. If this raises, they are unchanged.
        Frozen ones never change: LBFGS would move them by gradients that it remembers, and each rank has its own.

        Args:
            move: the optimizer's own step.

        Returns:
            The return value of `move`.

        Raises:
            ValueError: Adasum does not support a parameter's dtype.
            SupersededError: a newer optimizer has one of the parameters.
            HorovodInternalError: the operation failed.
            Exception: the error that `move` raised. The other ranks' step fails too.
        """
        self._tracked.update()
        parameters = [entry.parameter for entry in self._tracked.entries]
        comm = self._enter()
        if comm is None or not parameters:
            result = move()
            if self._finite is not None:
                self._finite.look_alone(self._tracked.entries, self._get_engine().rank)
                self._finite.settle()
            if parameters:
                self._complete_step_alone()
            return result

        starts = [parameter.detach().clone() for parameter in parameters]
        frozen = self._tracked.list_frozen()
        frozen_starts = [parameter.detach().clone() for parameter in frozen]
        self._has_submitted = False
        try:
            if self._superseded is not None:
                raise SupersededError(self._superseded)  # noqa: TRY301 - reported to the others like any failure
            result = move()
            with torch.no_grad():
                deltas = [parameter - start for parameter, start in zip(parameters, starts, strict=True)]
                _copy(starts, parameters)
                _copy(frozen_starts, frozen)
                for parameter, combined in zip(parameters, self._combine_with_all(deltas), strict=True):
                    parameter.add_(combined)
        except BaseException as error:
            _copy(starts, parameters)
            _copy(frozen_starts, frozen)
            if self._communicator is not None:
                self._fail(self._communicator, error)
            raise
        return result

    def spread_infinity(self, gradients: Sequence[torch.Tensor], scale: Scale = math.inf) -> None:
        """If a rank has a gradient that is not finite, make all gradients infinite on all ranks.

        A gradient scaler then skips the step on all ranks, so that either all take part in the step or none.

        Args:
            gradients: of this rank.
            scale: see `FiniteCheck.settle`.
        """
        comm = self._enter()
        if comm is None:
            return

        dense = [gradient.detach() for gradient in gradients]
        values = [part if part.layout is torch.strided else part._values() for part in dense]  # noqa: SLF001 - in place, and whether it is coalesced or not
        is_bad = not all(bool(torch.isfinite(part).all()) for part in values)
        flag = torch.tensor([int(is_bad)], dtype=torch.int32, device="cpu")
        operation = Allreduce([flag], Combination(Reduction.MAX), comm.members, f"allreduce.{comm.name}.infinity")
        (found,) = comm.engine.run(operation)

        if found.item() and self._finite is not None:
            self._finite.exchange(comm, self._tracked.entries)
            self._finite.count_step()
            self._finite.settle(scale)
        if found.item() and not is_bad:
            for part in values:
                part.fill_(torch.inf)

    def _fail(self, comm: Communicator, error: BaseException) -> None:
        """After a failed step, make the other ranks' operations fail that this rank has not submitted."""
        must_report = not isinstance(error, DeadlockError)  # after a deadlock nothing is pending on any rank
        for check in self._checks:
            if must_report:
                check.fail_others(comm, error)
            check.withdraw()
        if must_report and not self._has_submitted:
            comm.fail_others(_STEP, error)

    def _combine_with_all(self, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        """The combined updates of all ranks; after a loss those of the surviving ranks."""
        while (comm := self._enter()) is not None:
            try:
                if self._check is not None:
                    self._check.ask(comm)
                    self._check.finish(comm)
                if self._finite is not None:
                    self._finite.exchange(comm, self._tracked.entries)
                    self._finite.settle()
                combined = self._combine(comm, deltas)
                comm.complete_step(self._index)
            except StepRevokedError:  # the step runs again
                continue
            for check in self._checks:
                check.count_step()
            return combined
        self._complete_step_alone()
        return deltas

    def _complete_step_alone(self) -> None:
        complete_step_alone(self._get_engine(), self._find_set)

    def _combine(self, comm: Communicator, deltas: list[torch.Tensor]) -> list[torch.Tensor]:
        name = _STEP.format(comm.name)
        compressor = self._compressor
        if compressor is None:
            return self._run(
                comm,
                Adasum(deltas, _ADASUM, comm.members, name, None if comm.is_elastic else deltas),
            )
        compressed = [compressor.compress(delta) for delta in deltas]
        results = self._run(comm, Adasum([tensor for tensor, _ in compressed], _ADASUM, comm.members, name))
        return [
            compressor.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)
        ]

    def _enter(self) -> Communicator | None:
        """The communicator of the present generation; None where no other rank takes part."""
        engine = self._get_engine()
        if engine is not self._engine:
            self._engine, self._generation = engine, engine.generation
            self._communicator = Communicator.create(engine, self._find_set())
            if self._check is not None:
                self._check.begin()
        elif self._generation != engine.generation:
            self._generation = engine.generation
            if self._communicator is not None:
                self._communicator = self._communicator.rebind()
            for check in self._checks:
                check.withdraw()
        return self._communicator

    def _run(self, comm: Communicator, operation: Adasum) -> list[torch.Tensor]:
        operation.is_of_step = True
        handle = comm.engine.submit(operation, is_awaited=True)
        self._has_submitted = True
        results = comm.engine.wait(handle)
        if handle.release is None:
            self._index = -1
        else:
            self._index = handle.release.index
        return results


@torch.no_grad()
def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
