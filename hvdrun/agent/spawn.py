"""How a worker comes to life: each leads a session of its own, so that its whole process tree can be ended."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Protocol

from hvdrun.agent.binding import Binder
from hvdrun.errors import CommandNotExecutableError, CommandNotFoundError, HvdrunError
from hvdrun.processes.child import start_child
from hvdrun.spec.environment import is_elastic
from hvdrun.spec.mapping import BindTo
from rendezvous.bootstrap import INCARNATION, JOB, SLOT, Bootstrap, horovod_environment, torch_environment
from rendezvous.core.messages import Launch
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Begin

# By these NCCL, gloo and tensorpipe find the network between the hosts. NCCL takes a bare name for a beginning, which
# would let eth1 mean eth10 as well; with "=" it is the name.
_INTERFACE_VARIABLES = {b"NCCL_SOCKET_IFNAME": b"=", b"GLOO_SOCKET_IFNAME": b"", b"TP_SOCKET_IFNAME": b""}


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker's process; whoever receives this owns the descriptors, the other ends of its streams.

    stdin is None for a worker that has nothing to read.
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
            HvdrunError: the command cannot be started here; its exit code tells which way.
        """

    async def close(self) -> None:
        """Give back what was held for further workers."""


class ExecSpawner:
    """Executes any command, as a shell would."""

    def __init__(self, begin: Begin, environment: "WorkerEnvironment") -> None:
        self._begin = begin
        self._environment = environment
        self.binder = Binder(BindTo(str(begin.workers["bind_to"])))

    async def prepare(self) -> None:
        """See `Spawner`: at once."""

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
    """Both ends of what will be a worker's standard streams."""

    stdin: int = -1
    stdin_writer: int | None = None
    stdout_writer: int = -1
    stdout: int = -1
    stderr_writer: int = -1
    stderr: int = -1

    @property
    def theirs(self) -> tuple[int, int, int]:
        """The worker's ends."""
        return self.stdin, self.stdout_writer, self.stderr_writer

    def hand_over(self, pid: int) -> Spawned:
        """The worker has its ends; the others go to whoever watches it."""
        spawned = Spawned(pid, self.stdin_writer, self.stdout, self.stderr)
        self.stdin_writer = None
        self.stdout = self.stderr = -1
        return spawned


@contextlib.contextmanager
def open_streams(*, reads: bool) -> Iterator[Streams]:
    """A worker's standard streams, with an input where it `reads`; what was not handed over is closed at the end."""
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
    """Gives each worker its variables: the job's, how to reach the agent, and its numbers.

    master: where rank 0 may open a torch store of its own; None in an elastic job, whose ranks change.
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


def mark_service(begin: Begin) -> dict[bytes, bytes]:
    """By these variables a process that serves the workers, and is none, is known as one of this job and host."""
    marks = {JOB: begin.job, SLOT: f"{begin.host}:0", INCARNATION: "0"}
    return {os.fsencode(name): os.fsencode(value) for name, value in marks.items()}


def _name_interface(interface: str) -> dict[bytes, bytes]:
    """What tells the libraries which network to use, unless the user does."""
    if not interface:
        return {}
    return {variable: lead + os.fsencode(interface) for variable, lead in _INTERFACE_VARIABLES.items()}


def find_executable(name: str, directory: str, environment: Mapping[bytes, bytes]) -> str:
    """Where the command is: a path as it stands, seen from the working directory; a bare name on the worker's PATH.

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
    """The one sentence for a command that exists, but could not be started."""
    if not Path(directory).is_dir():
        return CommandNotExecutableError(executable, f"the working directory {directory!r} does not exist here")
    if error.errno == errno.ENOEXEC:
        return CommandNotExecutableError(executable, "it is no program, and has no #! line that names one")
    return CommandNotExecutableError(executable, os.strerror(error.errno or 0))
