"""How workers are started: each leads a new session, so that its whole process tree can be killed."""

import contextlib
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvdrun.agent.snapshot_folder import SnapshotFolder
from hvdrun.agent.snapshot_memories import SnapshotMemories
from hvdrun.errors import CommandNotExecutableError, HvdrunError
from hvdrun.processes.binding import Binder, BindTo
from hvdrun.processes.child import StandardStreams, Start, open_pipe, start_child
from hvdrun.spec.command import LookupContext, check_executable, explain_not_found, find_on_path
from hvdrun.spec.environment import is_elastic
from hvdrun.spec.suggestions import suggest_interpreter
from hvdrun.startup.paths import find_fault, is_file
from hvdrun.version import __version__
from rendezvous.bootstrap import (
    ERROR_FILE,
    INCARNATION,
    JOB,
    SLOT,
    SNAPSHOT_DIR,
    SNAPSHOT_FD,
    VERSION,
    Bootstrap,
    horovod_environment,
    name_error_file,
    torch_environment,
    torch_worker_environment,
)
from rendezvous.core.messages import Launch
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Begin

# The variables by which NCCL, gloo and tensorpipe find the network between the hosts, and what stands before the name.
# NCCL takes a bare name as a prefix: eth1 would match eth10 as well. "=" makes it the whole name.
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
        """Whether this forker also forks the workers, and their script probably calls `init()`."""

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: StandardStreams
    ) -> int | None:
        """Fork a process that runs the module; returns its pid, or None where there is no forkserver."""


class ExecSpawner:
    """Executes any command, as a shell would.

    Args:
        begin: the job, as the launcher has sent it.
        environment: makes the variables of each worker.
    """

    def __init__(self, begin: Begin, environment: "WorkerEnvironment") -> None:
        self._begin = begin
        self._environment = environment
        self.binder = Binder(BindTo(begin.workers.bind_to))

    async def prepare(self) -> None:
        """See `Spawner`: nothing is needed."""

    async def spawn(self, launch: Launch) -> Spawned:
        """Start one worker by exec; see `Spawner`."""
        begin = self._begin
        environment = self._environment.of(launch)
        memory = self._environment.memories.find(launch)
        executable = find_executable(begin.command[0], begin.directory, environment)

        async def start(streams: StandardStreams) -> int:
            with self.binder.bound(launch.assignment.local_rank):
                try:
                    return start_child(
                        begin.command,
                        streams,
                        directory=begin.directory,
                        environment=environment,
                        executable=executable,
                        descriptors=() if memory is None else (memory,),
                    )
                except OSError as error:
                    raise explain_failure(error, executable, begin.directory) from error

        return await start_worker(start, reads=launch.assignment.rank == begin.workers.stdin_rank)

    async def close(self) -> None:
        """Nothing is held."""


async def start_worker(start: Start, *, reads: bool) -> Spawned:
    """Start a worker with a pipe to its input where it `reads`; `start` gets its standard streams, and returns its pid.

    Raises:
        Exception: what `start` raised; no descriptor is left open.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        if reads:
            stdin, writer = open_pipe(theirs, ours)
        else:
            stdin, writer = os.open(os.devnull, os.O_RDONLY), None
            theirs.callback(os.close, stdin)
        stdout, stdout_writer = open_pipe(ours, theirs)
        stderr, stderr_writer = open_pipe(ours, theirs)
        pid = await start((stdin, stdout_writer, stderr_writer))
        ours.pop_all()
    return Spawned(pid, writer, stdout, stderr)


class WorkerEnvironment:
    """The variables of each worker: the job's, how to reach the agent, its rank and the sizes.

    Args:
        begin: the job, as the launcher has sent it.
        socket: the agent's Unix socket.
        snapshot_folder: of the workers' files in memory; None: they have none.

    memories: of the workers' snapshots.
    """

    def __init__(self, begin: Begin, socket: Path, snapshot_folder: SnapshotFolder | None = None) -> None:
        self._begin = begin
        self._socket = socket
        self._snapshot_folder = snapshot_folder
        self.memories = SnapshotMemories(begin.environment)

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
            server_timeout_seconds=begin.server_timeout_seconds or 0.0,
        )

        elastic = is_elastic(begin.environment)
        added = bootstrap.environment() | horovod_environment(launch.assignment, begin.host, elastic=elastic)
        added[VERSION] = __version__
        if launch.round is not None and launch.round.master is not None:
            added |= torch_environment(launch.assignment, launch.round, launch.round.master, begin.job)
        else:
            added |= torch_worker_environment(launch.worker.incarnation - 1, begin.job)

        added[ERROR_FILE] = str(name_error_file(self._socket, launch.worker))
        if (memory := self.memories.find(launch)) is not None:
            added[SNAPSHOT_FD] = str(memory)
        is_chosen = os.fsencode(SNAPSHOT_DIR) in begin.environment  # by -x
        if self._snapshot_folder is not None and not is_chosen:
            folder = self._snapshot_folder.find(launch.round)
            if folder is not None:
                added[SNAPSHOT_DIR] = str(folder)
        own = {os.fsencode(name): os.fsencode(value) for name, value in added.items()}
        return {**_name_interface(begin.interface), **begin.environment, **own}


def make_service_environment(begin: Begin) -> dict[bytes, bytes]:
    """The environment of a process that serves the workers: one thread, and the job and host that it belongs to."""
    origin = {JOB: begin.job, SLOT: f"{begin.host}:0", INCARNATION: "0"}
    own = {os.fsencode(name): os.fsencode(value) for name, value in origin.items()}
    return {**begin.environment, **own, **_ONE_THREAD}


class MasterPorts:
    """The ports that this host reserves for rank 0, one for each round that rank 0 begins here.

    A round has a port of its own: a process of the former round, on a host that was cut off, may still dial the old
    port. So the ports of the last two rounds are kept, and no other process gets the old one.

    Args:
        address: of this host, as the other hosts reach it.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ports: dict[int, socket.socket] = {}

    def reserve(self, number: int) -> Endpoint:
        """The port of this round; reserved by the first call.

        Raises:
            OSError: this machine has no free port.
        """
        if number not in self._ports:
            self._ports[number] = reserve_port()
            for former in [each for each in self._ports if each < number - 1]:
                self._ports.pop(former).close()
        return Endpoint(self._address, self._ports[number].getsockname()[1])

    def list(self) -> Sequence[tuple[int, Endpoint]]:
        """The rounds of which the ports are reserved, in order, and these ports."""
        return [(number, self.reserve(number)) for number in sorted(self._ports)]

    def has_listener(self) -> bool:
        """A process listens at one of them."""
        ports = {port.getsockname()[1] for port in self._ports.values()}
        if ports:
            return not ports.isdisjoint(list_listening_ports())
        return False

    def close(self) -> None:
        """Release all."""
        while self._ports:
            self._ports.popitem()[1].close()


_LISTENING = "0A"  # the state of a socket, in the kernel's tables


def list_listening_ports() -> frozenset[int]:
    """The ports of this network namespace at which something listens."""
    ports = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with contextlib.suppress(OSError):  # there may be no IPv6
            rows = (line.split() for line in table.read_text(encoding="ascii").splitlines()[1:])
            ports |= {int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in rows if state == _LISTENING}
    return frozenset(ports)


def reserve_port() -> socket.socket:
    """Bind a port of this machine, on all its addresses, for rank 0's torch store; closing the socket releases it.

    There is no race: the agent never listens. With SO_REUSEADDR on both sides a worker can bind the port as well, and
    listen; a process without SO_REUSEADDR gets "address in use".
    """
    # As torch's store listens: on [::] where there is IPv6, which covers IPv4, else on 0.0.0.0.
    if socket.has_dualstack_ipv6():
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", 0))
    except OSError:
        bound.close()
        raise
    return bound


def _name_interface(interface: str) -> dict[bytes, bytes]:
    """The variables that name the network for the communication libraries, unless the user sets them."""
    if not interface:
        return {}
    return {variable: lead + os.fsencode(interface) for variable, lead in _INTERFACE_VARIABLES.items()}


def find_executable(name: str, directory: str, environment: Mapping[bytes, bytes]) -> str:
    """The file of a command: a path is relative to the working directory, a bare name is searched on the worker's PATH.

    Raises:
        CommandNotFoundError, CommandNotExecutableError: it is not there, or not executable, or the working directory
            cannot be used.
    """
    if (fault := find_fault(Path(directory))) is not None:
        raise CommandNotExecutableError(name, f"the working directory {directory!r} {fault} here")
    search = None
    if b"PATH" in environment:
        search = os.fsdecode(environment[b"PATH"])
    context = LookupContext(Path(directory), search, "")
    if "/" in name:
        check_executable(name, context)
        return str(Path(directory, name))
    found = find_on_path(name, context)
    if found is None:
        raise explain_not_found((name,), context)
    return found


def explain_failure(error: OSError, executable: str, directory: str) -> HvdrunError:
    """The error for a command that exists and cannot be started."""
    if (fault := find_fault(Path(directory))) is not None:
        return CommandNotExecutableError(executable, f"the working directory {directory!r} {fault} here")
    if error.errno == errno.ENOEXEC:
        reason = "it is not an executable program and has no #! line"
        meant = suggest_interpreter(executable)
        return CommandNotExecutableError(executable, reason if meant is None else f"{reason}: start it with {meant}")
    if error.errno == errno.ENOENT and is_file(Path(executable)):
        return CommandNotExecutableError(executable, "the program of its #! line, or its loader, does not exist")
    return CommandNotExecutableError(executable, os.strerror(error.errno or 0))
