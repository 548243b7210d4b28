"""How workers are started: each leads a new session, so that its whole process tree can be killed."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Protocol

from hvdrun.errors import CommandNotExecutableError, CommandNotFoundError, HvdrunError
from hvdrun.processes.binding import Binder, BindTo
from hvdrun.processes.child import StandardStreams, start_child
from hvdrun.spec.environment import is_elastic
from rendezvous.bootstrap import INCARNATION, JOB, SLOT, Bootstrap, horovod_environment, torch_environment
from rendezvous.core.messages import Launch
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Begin

# By these NCCL, gloo and tensorpipe find the network between the hosts. NCCL takes a bare name as a prefix: eth1 would
# match eth10 as well. With "=" it is the whole name.
_INTERFACE_VARIABLES = {b"NCCL_SOCKET_IFNAME": b"=", b"GLOO_SOCKET_IFNAME": b"", b"TP_SOCKET_IFNAME": b""}
_ONE_THREAD = {b"OMP_NUM_THREADS": b"1"}


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker's process, and the other ends of its standard streams, which the receiver closes.

    stdin: None where the worker reads from /dev/null.
    """

    pid: int
    stdin: int | None
    stdout: int
    stderr: int


class Spawner(Protocol):
    """Starts workers."""

    async def prepare(self) -> None:
        """Wait until a worker can be started without delay."""

    async def spawn(self, launch: Launch) -> Spawned:
        """Start one worker.

        Raises:
            HvdrunError: the command cannot be started here; the error has the exit code of the job.
        """

    async def close(self) -> None:
        """Release what is held for further workers."""


class ModuleForker(Protocol):
    """Starts a module of this project faster than a new interpreter does."""

    @property
    def expects_init(self) -> bool:
        """Whether workers are forked by it, too, and their script probably calls `init()`."""

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: StandardStreams
    ) -> int | None:
        """Fork a process that runs the module; returns its pid, or None where there is no forkserver."""


class ExecSpawner:
    """Executes any command, as a shell would."""

    def __init__(self, begin: Begin, environment: "WorkerEnvironment") -> None:
        self._begin = begin
        self._environment = environment
        self.binder = Binder(BindTo(str(begin.workers["bind_to"])))

    async def prepare(self) -> None:
        """See `Spawner`: nothing is needed."""

    async def spawn(self, launch: Launch) -> Spawned:
        """Start one worker by exec; see `Spawner`."""
        begin = self._begin
        environment = self._environment.of(launch)
        executable = find_executable(begin.command[0], begin.directory, environment)
        reads = launch.assignment.rank == begin.workers["stdin_rank"]
        with open_streams(reads=reads) as streams, self.binder.bound(launch.assignment.local_rank):
            try:
                pid = start_child(
                    begin.command,
                    streams.theirs,
                    directory=begin.directory,
                    environment=environment,
                    executable=executable,
                )
            except OSError as error:
                raise explain_failure(error, executable, begin.directory) from error
            return streams.hand_over(pid)

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class Streams:
    """Both ends of a worker's standard streams."""

    stdin: int = -1
    stdin_writer: int | None = None
    stdout_writer: int = -1
    stdout: int = -1
    stderr_writer: int = -1
    stderr: int = -1

    @property
    def theirs(self) -> StandardStreams:
        """The worker's ends."""
        return self.stdin, self.stdout_writer, self.stderr_writer

    def hand_over(self, pid: int) -> Spawned:
        """The other ends, for the caller, once the worker has its own."""
        spawned = Spawned(pid, self.stdin_writer, self.stdout, self.stderr)
        self.stdin_writer = None
        self.stdout = self.stderr = -1
        return spawned


@contextlib.contextmanager
def open_streams(*, reads: bool) -> Iterator[Streams]:
    """A worker's standard streams, with a pipe to its input where it `reads`; closes what was not handed over."""
    streams = Streams()
    try:
        streams.stdin, streams.stdin_writer = os.pipe() if reads else (os.open(os.devnull, os.O_RDONLY), None)
        streams.stdout, streams.stdout_writer = os.pipe()
        streams.stderr, streams.stderr_writer = os.pipe()
        yield streams
    finally:
        for descriptor in astuple(streams):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


class WorkerEnvironment:
    """The variables of each worker: the job's, how to reach the agent, its rank and the sizes.

    master: where rank 0 may open a torch store; None in an elastic job, where ranks change.
    """

    def __init__(self, begin: Begin, socket: Path, master: Endpoint | None) -> None:
        self._begin = begin
        self._socket = socket
        self._master = master

    def of(self, launch: Launch) -> dict[bytes, bytes]:
        """All variables of one worker."""
        begin = self._begin
        bootstrap = Bootstrap(
            job=begin.job,
            socket=self._socket,
            worker=launch.worker,
            address=begin.address,
            start_timeout_seconds=begin.start_timeout_seconds,
            lease_seconds=begin.lease_seconds,
            is_late=launch.is_late,
        )
        elastic = is_elastic(begin.environment)
        added = bootstrap.environment() | horovod_environment(launch.assignment, begin.host, elastic=elastic)
        if self._master is not None:
            added |= torch_environment(launch.assignment, self._master, begin.job)
        own = {os.fsencode(name): os.fsencode(value) for name, value in added.items()}
        return {**_name_interface(begin.interface), **begin.environment, **own}


def make_service_environment(begin: Begin) -> dict[bytes, bytes]:
    """The environment of a process that serves the workers: it has one thread, and the origin of this job and host."""
    origin = {JOB: begin.job, SLOT: f"{begin.host}:0", INCARNATION: "0"}
    own = {os.fsencode(name): os.fsencode(value) for name, value in origin.items()}
    return {**begin.environment, **own, **_ONE_THREAD}


def _name_interface(interface: str) -> dict[bytes, bytes]:
    """The variables that name the network for the communication libraries, unless the user sets them."""
    if not interface:
        return {}
    return {variable: lead + os.fsencode(interface) for variable, lead in _INTERFACE_VARIABLES.items()}


def find_executable(name: str, directory: str, environment: Mapping[bytes, bytes]) -> str:
    """The file of a command: a path is relative to the working directory, a bare name is searched on the worker's PATH.

    Raises:
        CommandNotFoundError, CommandNotExecutableError: it is not there, or not executable.
    """
    if "/" in name:
        path = Path(directory, name)
        if not path.exists():
            raise CommandNotFoundError(name, (str(path),))
        return str(path)
    search = os.fsdecode(environment.get(b"PATH", b""))
    found = shutil.which(name, path=search)
    if found is None:
        raise CommandNotFoundError(name, search.split(os.pathsep) if search else ())
    return str(Path(directory, found))


def explain_failure(error: OSError, executable: str, directory: str) -> HvdrunError:
    """The error for a command that exists and cannot be started."""
    if not Path(directory).is_dir():
        return CommandNotExecutableError(executable, f"the working directory {directory!r} does not exist here")
    if error.errno == errno.ENOEXEC:
        return CommandNotExecutableError(executable, "it is not an executable program and has no #! line")
    return CommandNotExecutableError(executable, os.strerror(error.errno or 0))
