"""The runtime of a training process: its ranks in the job, and the engine that communicates.

`init()` joins the job and forms the group; `shutdown()` leaves it. Both can be repeated.
"""

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from worker_runtime.account import ACCOUNT, Part
from worker_runtime.checkpoints.folder import tell_unsaved
from worker_runtime.coordination.group import form
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.losses import Fail
from worker_runtime.engine.operation_recorder import OperationRecorder
from worker_runtime.errors import InitializationError, NotInitializedError
from worker_runtime.groups.backends.choice import GLOO_ALONE, Choice, Features, choose_backends
from worker_runtime.membership.agent_watch import AgentWatch, FailureNotice, StopNotice
from worker_runtime.membership.children import check_member, keep_sockets_below, remove_member, set_member
from worker_runtime.membership.foreign import ForeignJob, join_job, open_job
from worker_runtime.membership.launchers import World, find_world
from worker_runtime.membership.notifications import HOSTS_ADDED, HOSTS_REMOVED, NotificationManager
from worker_runtime.membership.recovery import Recovery
from worker_runtime.membership.version import check_version
from worker_runtime.rendezvous import (
    JOB,
    Assignment,
    Bootstrap,
    JoinReason,
    JoinRefusedError,
    OfferResize,
    RecoveryDecision,
    RendezvousError,
    connect,
    count_restarts,
    forget_world,
    read_backend,
    read_checkpoint,
    read_is_elastic,
    read_numbers,
)
from worker_runtime.startup import mpi_notice
from worker_runtime.startup.program_end import describe_end, shorten_tracebacks
from worker_runtime.timeline.timeline import Timeline

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient

ALONE = Assignment(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
WORLD_LIMIT = timedelta(minutes=5)  # for the members of another launcher's job to meet; torch's default
DEPARTED_LIMIT_SECONDS = 2.0  # after a failed operation, for the notice that a peer has exited with 0


@dataclass(slots=True)
class _World:
    assignment: Assignment  # may change while an operation of the program waits for the next generation
    engine: Engine


class Runtime:
    """Membership and communication of this process. A process has one, `RUNTIME`.

    Args:
        connect: creates a client of the rendezvous.
    """

    def __init__(self, connect: Callable[[Bootstrap], "WorkerClient"]) -> None:
        self.notifications = NotificationManager()
        self.stop_notice = StopNotice()
        self._connect = connect
        self._lock = threading.RLock()
        self.world: _World | None = None  # while this process is a member
        self._generation = 0
        self._foreign: ForeignJob | None = None  # the job of another launcher, kept for a second init()
        self._is_registered = False
        self.recovery: Recovery | None = None  # in an elastic job
        self._late: tuple[Bootstrap, Choice] | None = None  # until this worker joins a job that already trains
        self.uses_checkpoints = False  # the training function looks for them, and saves after a stop notice
        self._choice = GLOO_ALONE
        self._timeline = Timeline()
        self.is_forked = False  # from the process that has joined: only ranks and sizes are known here
        self._failure_notice = FailureNotice(
            connect, lambda: self.world is not None and self.world.engine.has_failed, self._name_departed
        )

    def init(self, environment: Mapping[str, str] = os.environ) -> None:
        """Join the job that started this process. Does nothing if it has joined, unless it was forked since.

        Without hvdrun it joins the world of torchrun, mpirun or srun; without a launcher, a world of one.

        Raises:
            InitializationError: the job rejects this worker; the workers did not connect in time; another launcher set
                no address where they can meet; the requested backend is missing; or this is a child of a worker.
        """
        with self._lock:
            if self.world is not None and not self.is_forked:
                return

            try:
                check_version(environment)
                bootstrap = Bootstrap.read(environment)
                world = None if bootstrap is not None else find_world(environment)
                is_elastic = read_is_elastic(environment)
                identity = str(bootstrap or world or "")
                check_member(environment, identity)
                requested = read_backend(environment)
                choice = choose_backends(requested, Features.look(requested), is_elastic=is_elastic)
                ACCOUNT.open(None if bootstrap is None else bootstrap.account_file)
                if bootstrap is not None and is_elastic and bootstrap.is_late and not self._generation:
                    assignment, engine = read_numbers(environment), Engine()
                    self._late = bootstrap, choice
                elif bootstrap is not None:
                    assignment, engine = (self._join_elastic if is_elastic else self._join)(bootstrap, choice)
                elif world is not None:
                    assignment, engine = self._join_foreign(world, choice)
                else:
                    assignment, engine = ALONE, Engine()
            except RendezvousError as error:
                raise _explain(error) from None

            ACCOUNT.cover(Part.START if self.is_late else 0)  # until its function trains
            self._choice, self.is_forked = choice, False
            self._enter(_World(assignment, engine))
            if bootstrap is not None and is_elastic:
                forget_world(os.environ)
            keep_sockets_below(None if bootstrap is None else bootstrap.socket.parent)
            if identity:
                set_member(os.environ, identity, assignment.rank)
            self._failure_notice.prepare(bootstrap)
            self.stop_notice.prepare(bootstrap)
            if bootstrap is not None:
                mpi_notice.listen(environment)

            if not self._is_registered:
                self._is_registered = True
                shorten_tracebacks()
                atexit.register(self._end)
                os.register_at_fork(after_in_child=self._abandon)

    def rejoin(self, reason: JoinReason, error: str = "") -> RecoveryDecision | None:
        """Enter the next generation, after an exception of the training function.

        Args:
            reason: RESIZE or RESTORE.
            error: the error text of a RESTORE.

        Returns:
            The decision in an elastic job; None in a static one, where this leaves the job and joins again.

        Raises:
            InitializationError: there is no further generation for this worker.
            SystemExit: the job needs this worker no longer.
        """
        with self._lock:
            recovery = self.recovery
            if recovery is None:
                self.shutdown()
                self.init()
                return None
            self.world = None
            try:
                assignment, engine, decision = recovery.enter(reason, error)
            except RendezvousError as rejection:
                raise _explain(rejection) from None
            self._enter(_World(assignment, engine))
            return decision

    @property
    def is_late(self) -> bool:
        """Whether this worker is alone until it joins others that train already; see `join_late`."""
        return self._late is not None

    def join_late(self) -> bool:
        """Join a job that already trains; return whether that was still to do.

        A worker that starts while the others train is alone up to this call, so that they need not wait for its
        program's preparations: it has the ranks that it was started with, and its collectives are local.

        Raises:
            InitializationError: there is no generation for this worker.
            SystemExit: the job needs this worker no longer.
        """
        with self._lock:
            late, self._late = self._late, None
            if late is None:
                return False
            world, self.world = self.world, None
            if world is not None:
                world.engine.close()
            try:
                self._enter(_World(*self._join_elastic(*late)))
            except RendezvousError as error:
                raise _explain(error) from None
            return True

    def declare_state(self) -> AbstractContextManager[None]:
        """A context in which this worker can restart its function, so that the job replaces lost workers."""
        if self.recovery is None:
            return nullcontext()
        return self.recovery.declare()

    def shutdown(self, end: str = "") -> None:
        """Leave the job. Pending operations fail on all ranks. Does nothing before `init()`.

        Args:
            end: how this process ends, for the other ranks' messages; empty where it continues.
        """
        with self._lock:
            world, self.world = self.world, None
            is_forked, self.is_forked = self.is_forked, False
        if world is not None and not is_forked:
            world.engine.close(end=end)
            remove_member(os.environ)
            self._timeline.stop()
        self._close_recovery()

    @property
    def is_initialized(self) -> bool:
        """Whether `init()` has succeeded and `shutdown()` has not been called since; also in a forked child."""
        return self.world is not None

    @property
    def assignment(self) -> Assignment:
        """This worker's ranks and sizes; raises NotInitializedError."""
        world = self.world
        if world is None:
            raise NotInitializedError
        return world.assignment

    @property
    def engine(self) -> Engine:
        """The engine, which runs the collectives; raises NotInitializedError."""
        world = self.world
        if world is None:
            raise NotInitializedError
        return world.engine

    def is_stopping(self) -> bool:
        """Whether the job has received a stop notice: the same on all ranks, which call this at the same places.

        Raises:
            HorovodInternalError: a rank was lost, or Horovod has not been initialized.
        """
        engine = self.engine
        if not engine.steps.is_stopping:
            if engine.size == 1:
                engine.steps.is_stopping = self.stop_notice.has_come()
            elif not engine.steps.has_stepped:
                engine.steps.is_stopping = engine.agree_on_stopping()
        return engine.steps.is_stopping

    def start_timeline(self, path: Path, *, mark_cycles: bool) -> None:
        """Record a timeline from now on, in the present process of rank 0; ends another one.

        Raises:
            NotInitializedError: there is no job.
            OSError: this process is rank 0, and cannot write the file.
        """
        engine = self.engine
        self.stop_timeline()
        job = os.environ.get(JOB) or f"{os.uname().nodename}-{os.getpid()}"
        self._timeline.start(path, job, mark_cycles=mark_cycles, restarts=count_restarts(os.environ))
        if self.is_late:
            return  # the other ranks may have another rank 0
        if engine.rank == 0:
            self._timeline.open()
        engine.record(self._open_recorder)

    def stop_timeline(self) -> None:
        """Record no longer. Does nothing where no timeline is recorded.

        Raises:
            NotInitializedError: there is no job.
        """
        self.engine.record(None)
        self._timeline.stop()

    def _open_recorder(self) -> OperationRecorder | None:
        of = self._choice.of
        recorder = self._timeline.open_again(None if self.recovery is None else self.recovery.interruption)
        return None if recorder is None else OperationRecorder(recorder, lambda device: of(device).value)

    def _enter(self, world: _World) -> None:
        """Be a member; a timeline continues."""
        self.world = world
        if self._timeline.is_wanted:
            world.engine.record(self._open_recorder)

    def _join_elastic(self, bootstrap: Bootstrap, choice: Choice) -> tuple[Assignment, Engine]:
        """Join an elastic job, until `shutdown()`."""
        recovery = self.recovery = Recovery(
            bootstrap, self._connect, choice, self._generation, self._note_assignment, self._note_offer
        )
        try:
            assignment, engine, _ = recovery.enter(JoinReason.BEGIN)
        except BaseException:
            self._close_recovery()
            raise
        return assignment, engine

    def _join(self, bootstrap: Bootstrap, choice: Choice) -> tuple[Assignment, Engine]:
        """Join a static job.

        The client is closed when the group is connected: a static job sends no more notices, and a training process
        forks (DataLoader workers), which an open gRPC channel does not always survive.
        """
        limit = timedelta(seconds=bootstrap.start_timeout_seconds)
        with closing(self._connect(bootstrap)) as client:
            membership = client.join(self._generation)
            self._generation = membership.generation
            group = form(membership, client.await_sequencer, bootstrap.address, limit, choice=choice)
        engine = Engine.connect(group, limit, Fail(lambda: self._name_departed(bootstrap)), bootstrap.lease_seconds)
        return membership.assignment, engine

    def _name_departed(self, bootstrap: Bootstrap) -> str | None:
        """After a failure: a message about a rank that has exited with 0; None if no such rank is known."""
        with closing(self._connect(bootstrap)) as client:
            try:
                rank = client.find_departed(self._generation, DEPARTED_LIMIT_SECONDS)
            except RendezvousError:
                return None
        if rank is None:
            return None
        return f"rank {rank} has exited with 0 while others still communicate"

    def _join_foreign(self, world: World, choice: Choice) -> tuple[Assignment, Engine]:
        """Join the world of another launcher."""
        if self._foreign is None:
            self._foreign = open_job(world, WORLD_LIMIT)
        self._generation += 1
        return join_job(world, self._foreign, self._generation, WORLD_LIMIT, choice)

    def _close_recovery(self) -> None:
        recovery, self.recovery = self.recovery, None
        if recovery is not None:
            recovery.close()
            self._generation = recovery.generation

    def _note_assignment(self, assignment: Assignment) -> None:
        """Set this worker's new ranks after a change of the generation."""
        if self.world is not None:
            self.world.assignment = assignment

    def _note_offer(self, offer: OfferResize) -> None:
        """Notify the listeners of added or removed hosts."""
        self.notifications.handle_hosts_updated(offer.number, HOSTS_ADDED * offer.adds | HOSTS_REMOVED * offer.removes)

    def _end(self) -> None:
        """Shut down at the end of the process, and close what `shutdown()` keeps for another `init()`."""
        self._tell_unsaved()
        self.shutdown(describe_end(self._failure_notice.returncode, self._failure_notice.place))
        if self._foreign is not None:
            self._foreign.close()

    def _tell_unsaved(self) -> None:
        """Rank 0 says that --checkpoint has no effect: the script has no function that uses it, and saves nothing."""
        folder, world = read_checkpoint(os.environ), self.world
        if folder is None or self.uses_checkpoints or self.is_forked or world is None or world.assignment.rank:
            return
        tell_unsaved(folder)

    def _abandon(self) -> None:
        """Abandon the parent's connections in a forked child, which is not a member of the job."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        ACCOUNT.abandon()
        self._timeline = Timeline()
        self._failure_notice.prepare(None)
        self.stop_notice.prepare(None)
        if self.recovery is not None:
            self.recovery.abandon()
            self.recovery = None
        if self._foreign is not None:
            self._foreign.abandon()
            self._foreign = None
        if self.world is not None and not self.is_forked:
            self.is_forked = True
            self.world.engine.abandon()


def _explain(error: RendezvousError) -> InitializationError:
    """The error for the program.

    Raises:
        SystemExit: the job needs this worker no longer. SIGTERM may come later than this.
    """
    if isinstance(error, JoinRefusedError) and error.leaves:
        raise SystemExit(0)
    return InitializationError(str(error))


RUNTIME = Runtime(AgentWatch(connect).connect)
