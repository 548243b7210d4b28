"""The one object that a training process has of this package: who it is in the job, and through what it communicates.

`init()` joins the job and forms the group; `shutdown()` leaves it; both may be repeated any number of times.
"""

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from rendezvous.bootstrap import Bootstrap
from rendezvous.core.model import Assignment, Membership
from rendezvous.errors import RendezvousError
from worker_runtime.errors import ForeignWorldError, InitializationError, NotInitializedError
from worker_runtime.executor import Executor
from worker_runtime.group import StoreExchange, form

ALONE = Assignment(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)

# Slurm numbers its own steps (the batch script, an interactive shell, ...) from here up: no srun started those.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Client(StoreExchange, Protocol):
    """What the runtime needs of the rendezvous (`rendezvous.client.WorkerClient`)."""

    def join(self, after: int) -> Membership:
        """Wait for a generation newer than `after` that has this worker."""

    def close(self) -> None:
        """End the connection to the agent."""


@dataclass(frozen=True, slots=True)
class _World:
    assignment: Assignment
    executor: Executor


class Runtime:
    """Membership and communication of this process; a process has one, `RUNTIME`.

    Args:
        connect: makes the client of the rendezvous.
    """

    def __init__(self, connect: Callable[[Bootstrap], Client]) -> None:
        self._connect = connect
        self._lock = threading.RLock()
        self._world: _World | None = None
        self._generation = 0
        self._is_registered = False

    def init(self, environment: Mapping[str, str] = os.environ) -> None:
        """Join the job that started this process; without one, be a world of one. Does nothing when initialised.

        Raises:
            InitializationError: another launcher's world was found, the job refused this worker, or the workers could
                not connect in time.
        """
        with self._lock:
            if self._world is not None:
                return
            try:
                bootstrap = Bootstrap.read(environment)
                if bootstrap is None:
                    refuse_foreign_world(environment)
                    assignment, executor = ALONE, Executor(None)
                else:
                    assignment, executor = self._join(bootstrap)
            except RendezvousError as error:
                raise InitializationError(str(error)) from error
            self._world = _World(assignment, executor)
            if not self._is_registered:
                self._is_registered = True
                atexit.register(self.shutdown)
                os.register_at_fork(after_in_child=self._abandon)

    def shutdown(self) -> None:
        """Leave the job; operations pending on any rank fail. Does nothing when not initialised."""
        with self._lock:
            world, self._world = self._world, None
        if world is not None:
            world.executor.close()

    @property
    def is_initialized(self) -> bool:
        """Whether `init()` has succeeded and `shutdown()` has not been called since."""
        return self._world is not None

    @property
    def assignment(self) -> Assignment:
        """This worker's numbers; raises NotInitializedError."""
        return self._require().assignment

    @property
    def executor(self) -> Executor:
        """What runs the collectives of the present generation; raises NotInitializedError."""
        return self._require().executor

    def _require(self) -> _World:
        world = self._world
        if world is None:
            raise NotInitializedError
        return world

    def _join(self, bootstrap: Bootstrap) -> tuple[Assignment, Executor]:
        """Become a member of a new generation.

        The client is closed as soon as the group stands: a static job tells its workers nothing more, and a training
        process forks (DataLoader workers), which an open gRPC channel does not always survive.
        """
        limit = timedelta(seconds=bootstrap.start_timeout_seconds)
        client = self._connect(bootstrap)
        try:
            membership = client.join(self._generation)
            self._generation = membership.generation
            group = form(membership, client, bootstrap.address, limit)
        finally:
            client.close()
        return membership.assignment, Executor(group)

    def _abandon(self) -> None:
        """After a fork, in the child: it is no member, and must not touch the parent's connections."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        world, self._world = self._world, None
        if world is not None:
            world.executor.abandon()


def refuse_foreign_world(environment: Mapping[str, str]) -> None:
    """Raise ForeignWorldError if another launcher says that this process is one of several."""
    launchers = [("torchrun", "WORLD_SIZE"), ("mpirun", "OMPI_COMM_WORLD_SIZE"), ("mpirun", "PMI_SIZE")]
    step = environment.get("SLURM_STEP_ID", "")
    if "SLURM_PROCID" in environment and step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP:
        launchers.append(("srun", "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"))
    for launcher, variable in launchers:
        size = environment.get(variable, "")
        if size.isdecimal() and int(size) > 1:
            raise ForeignWorldError(launcher, variable, size)


def _connect_to_agent(bootstrap: Bootstrap) -> Client:
    from rendezvous.client import WorkerClient  # noqa: PLC0415 - grpc costs 76 ms, which a world of one need not pay

    return WorkerClient(bootstrap)


RUNTIME = Runtime(_connect_to_agent)
