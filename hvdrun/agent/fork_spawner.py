"""Starts workers by fork where that is possible and makes no difference to them, and by exec everywhere else."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hvdrun.agent.prefork import Forkserver, ForkserverError
from hvdrun.agent.spawn import (
    ExecSpawner,
    Spawned,
    WorkerEnvironment,
    find_executable,
    make_service_environment,
    start_worker,
)
from hvdrun.errors import HvdrunError
from hvdrun.processes import python_command
from hvdrun.processes.child import StandardStreams
from hvdrun.processes.python_command import PythonCommand
from hvdrun.startup.paths import is_file
from rendezvous.core.messages import Launch
from rendezvous.wire.orders import Begin
from rendezvous.wire.processes import ForkRequest

_THREADS = "OMP_NUM_THREADS"
_MODULES = ("torch", "worker_runtime.torch")
_FORKSERVERS = 2  # that one worker tries


class ForkSpawner:
    """Forks workers of plain Python commands.

    The forkserver starts with this object, so that its imports overlap with the rest of the start. After one that was
    ready has died, the next worker starts another.

    Args:
        begin: the launcher's configuration.
        environment: makes the environment of a worker.
        remark: takes a line of `-v` for each worker: how it was started, and why.
        alert: takes a sentence that hvdrun always prints.

    expects_init: workers are forked, and their script names a module that has `init()`.
    """

    def __init__(
        self,
        begin: Begin,
        environment: WorkerEnvironment,
        remark: Callable[[str], None],
        alert: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._begin = begin
        self._environment = environment
        self._remark = remark
        self._alert = alert
        self._is_told = False
        self._is_file_told = False
        self._exec = ExecSpawner(begin, environment)
        self._forkserver: Forkserver | None = None
        self._executable = ""
        self._interpreter = ""
        self.expects_init = False
        self._objection = self._open()

    async def prepare(self) -> None:
        """See `Spawner`: wait until the forkserver has imported, or cannot be used."""
        if self._forkserver is not None:
            await self._forkserver.wait_ready()

    async def spawn(self, launch: Launch) -> Spawned:
        """Start one worker; see `Spawner`."""
        self._tell_file_store(launch)
        objection = self._objection

        for _ in range(_FORKSERVERS):
            forkserver = self._forkserver
            if forkserver is None:
                break
            try:
                spawned = await self._fork(forkserver, launch)
            except ForkserverError as error:
                objection = str(error)
                await self._replace(forkserver, objection)
            else:
                self._remark(f"{launch.worker} is process {spawned.pid}, forked{self._describe_binding(launch)}")
                return spawned

        spawned = await self._exec.spawn(launch)
        self._tell_mpi(launch)
        how = f"executed ({objection}){self._describe_binding(launch)}"
        self._remark(f"{launch.worker} is process {spawned.pid}, {how}")
        return spawned

    async def fork_module(
        self,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[bytes, bytes],
        streams: StandardStreams,
    ) -> int | None:
        """See `ModuleForker`.

        The process begins in the root folder: like `python -m`, it searches its working directory for modules first.
        """
        forkserver = self._forkserver
        if forkserver is None:
            return None
        request = ForkRequest(
            executable=self._executable,
            arguments=(self._interpreter, "-m", module, *arguments),
            directory="/",
            environment=_decode(environment),
            threads=1,
        )
        try:
            return await forkserver.fork(request, streams)
        except ForkserverError as error:
            await self._replace(forkserver, str(error))
            return None

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """The forkserver, while it is used; see `hvdrun.agent.stopped_detector.Owner`."""
        if self._forkserver is None:
            return ()
        return ((self._forkserver.pid, "the forkserver"),)

    def note_stopped(self, pid: int, reason: str) -> None:
        """Kill the forkserver, which is stopped: workers that wait for it get a new one."""
        if self._forkserver is not None and self._forkserver.pid == pid:
            self._forkserver.kill(reason)

    async def close(self) -> None:
        """End the forkserver, and let go of the memories of snapshots; no other worker is started."""
        self._environment.memories.close()
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is not None:
            await forkserver.close()

    def _open(self) -> str:
        """Start the forkserver; returns the reason where workers cannot be forked, else ""."""
        begin = self._begin
        command = python_command.parse(begin.command)
        if not begin.workers.prefork:
            return "--no-prefork"
        if command is None:
            return "not a plain Python command"
        if (variable := python_command.find_thread_variable(_decode(begin.environment))) is not None:
            return f"{variable} is set"

        source = _read_source(begin.directory, command)
        if source is not None and (variable := python_command.find_early_variable(source)) is not None:
            return f"the script names {variable}, which must be set before the imports"

        modules: tuple[str, ...] = ()
        if source is None or python_command.wants_torch(source):
            modules = _MODULES
        try:
            self._interpreter = command.interpreter
            self._executable = find_executable(command.interpreter, begin.directory, begin.environment)
            forkserver = Forkserver()
            # Until a forked worker has its own environment, it has the origin of the forkserver.
            environment_of_service = make_service_environment(begin)
            forkserver.open(self._executable, begin.command, begin.directory, environment_of_service, modules)
        except (OSError, HvdrunError) as error:
            return f"no forkserver: {error}"

        self._forkserver = forkserver
        self.expects_init = source is not None and python_command.names_hvd(source)
        return ""

    async def _fork(self, forkserver: Forkserver, launch: Launch) -> Spawned:
        begin = self._begin
        environment = _decode(self._environment.of(launch))
        threads = None
        if _THREADS in environment:
            threads = int(environment[_THREADS])
        request = ForkRequest(
            executable=self._executable,
            arguments=begin.command,
            directory=begin.directory,
            environment=environment,
            threads=threads,
        )

        memory = self._environment.memories.find(launch)

        def bind(pid: int) -> None:
            self._exec.binder.bind(pid, launch.assignment.local_rank)

        return await start_worker(
            lambda streams: forkserver.fork(request, streams, bind, memory),
            reads=launch.assignment.rank == begin.workers.stdin_rank,
        )

    def _tell_mpi(self, launch: Launch) -> None:
        """Say that MPI does not know the job, once: nothing of hvdrun runs in a worker that was executed."""
        size, command = launch.assignment.size, python_command.parse(self._begin.command)
        if self._is_told or command is None or launch.assignment.rank or size == 1:
            return
        self._is_told = True
        source = _read_source(self._begin.directory, command)
        if source is not None and python_command.imports_mpi(source) and not python_command.names_hvd(source):
            self._alert(
                "mpi4py does not know this job: in MPI each worker is rank 0 of 1; start the script with "
                f"mpirun -np {size}, or do not import mpi4py"
            )

    def _tell_file_store(self, launch: Launch) -> None:
        """Say that the workers of a later round meet those of the last one in their file, once."""
        if self._is_file_told or launch.assignment.rank or launch.round is None or not launch.round.number:
            return

        self._is_file_told = True
        if (word := python_command.find_file_url(self._begin.command)) is not None:
            self._alert(
                f"the command names {word}: if its workers meet in this file, it still has the addresses of the last "
                "ones, so that those started again may not find each other: name env:// instead"
            )
            return

        command = python_command.parse(self._begin.command)
        source = None
        if command is not None:
            source = _read_source(self._begin.directory, command)
        if source is not None and python_command.names_file_store(source):
            self._alert(
                "the script names init_method='file:...', whose file still has the addresses of the last workers, so "
                "that those started again may not find each other: leave init_method out"
            )

    def _describe_binding(self, launch: Launch) -> str:
        return self._exec.binder.describe(launch.assignment.local_rank)

    async def _replace(self, forkserver: Forkserver, reason: str) -> None:
        """Start another forkserver, or execute workers from now on if this one never was ready.

        Several workers may find it dead at the same time.
        """
        if self._forkserver is forkserver:
            self._forkserver = None
            self._objection = reason
            if forkserver.was_ready:
                self._objection = self._open()
            await forkserver.close()


def _decode(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _read_source(directory: str, command: PythonCommand) -> bytes | None:
    """The program's source; None where it is not below the working directory, or cannot be read."""
    for path in (Path(directory, candidate) for candidate in python_command.list_sources(command)):
        if is_file(path):
            with contextlib.suppress(OSError):  # the interpreter reports it, when it runs the program
                return path.read_bytes()
    return None
