"""Runs the host discovery script (`--host-discovery-script`), a shell command that prints the hosts."""

import asyncio
import asyncio.subprocess
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from hvdrun.errors import HostSyntaxError, UsageError
from hvdrun.processes import processes
from hvdrun.processes.watchdog import ScriptWatchdog
from hvdrun.spec.command import find_directory
from hvdrun.spec.hosts import MAX_HOSTFILE_BYTES, HostList, parse_discovered
from hvdrun.spec.jobspec import JobSpec

_END_SECONDS = 5.0  # for a script to be gone after SIGKILL
LIMIT_SECONDS = 30.0  # a script may query a server of the cluster; one that hangs must end too
_ERROR_BYTES = _PIECE_BYTES = 64 * 1024
_NONSENSE = "nonsense"
_NEVER = (126, 127)  # the shell's codes for a command that it cannot start; another try does not help


class DiscoveryFailedError(Exception):
    """The script has not printed the hosts; the message is half a sentence.

    Args:
        reason: half a sentence.
        kind: equal for failures that differ only in the output of the script.
        is_hopeless: the shell cannot start it.
    """

    def __init__(self, reason: str, *, kind: str = "", is_hopeless: bool = False) -> None:
        super().__init__(reason)
        self.kind = kind or reason
        self.is_hopeless = is_hopeless


class DiscoveryImpossibleError(UsageError):
    """The script cannot be used.

    Cause: The shell cannot start the command of `--host-discovery-script`, or it names no hosts.
    Remedy: Run the command by hand: it prints one host a line, `server1:4`.
    """

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"the command {command!r}, given with --host-discovery-script, names no hosts: {reason}.")
        self.command = command


class DiscoveryScript:
    """Runs the script, once at a time, for one event loop.

    Args:
        command: a shell command, as the user has written it.
        slots_per_host: the number of slots of a host that is named without slots.
        directory: where it runs.
        watchdog: kills the script if hvdrun is killed.
        limit_seconds: the time limit for one answer.
    """

    def __init__(
        self,
        command: str,
        slots_per_host: int,
        directory: Path,
        watchdog: ScriptWatchdog,
        *,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._command = command
        self._slots_per_host = slots_per_host
        self._directory = directory
        self._watchdog = watchdog
        self._limit_seconds = limit_seconds

    async def ask(self) -> HostList:
        """Run the script, and return its hosts, at least one.

        The script has answered when it exits: then all processes that it has started are killed, daemons as well.

        Raises:
            DiscoveryFailedError: it failed, took too long, or names no host with a slot or something that is no host.
        """
        with _Output(MAX_HOSTFILE_BYTES) as output, _Output(_ERROR_BYTES) as errors:
            process = await self._start(output.writing, errors.writing)
            self._watchdog.add(process.pid)
            try:
                async with asyncio.timeout(self._limit_seconds):
                    await process.wait()
                return self._understand(process.returncode or 0, output.read_all(), errors.read_all())
            except TimeoutError:
                raise DiscoveryFailedError(f"it took longer than {self._limit_seconds:g} s") from None
            finally:
                await _end(process)
                self._watchdog.kill_strays()
                self._watchdog.remove(process.pid)

    async def _start(self, stdout: int, stderr: int) -> asyncio.subprocess.Process:
        """Start the script; if this is cancelled meanwhile, the process is killed."""
        starting = asyncio.create_task(
            asyncio.create_subprocess_shell(
                self._command,
                cwd=self._directory,
                env=self._watchdog.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            ),
            name="start the discovery script",
        )

        try:
            return await asyncio.shield(starting)
        except OSError as error:
            raise DiscoveryFailedError(f"it cannot be started: {error.strerror}") from error
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # it could not be started
                await _end(await starting)
            raise

    def _understand(self, code: int, output: bytes, errors: bytes) -> HostList:
        if code:
            last = " ".join(errors.decode(errors="replace").strip().rpartition("\n")[2].split())
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise DiscoveryFailedError(f"{how}: {last}" if last else how, kind=how, is_hopeless=code in _NEVER)

        if len(output) > MAX_HOSTFILE_BYTES:
            raise DiscoveryFailedError(f"it printed more than {MAX_HOSTFILE_BYTES} bytes", kind=_NONSENSE)

        try:
            hosts = parse_discovered(output.decode(), self._slots_per_host)
        except UnicodeDecodeError as error:
            what = f"byte {output[error.start]:#04x} of its output is not UTF-8 text"
            raise DiscoveryFailedError(what, kind=_NONSENSE) from None
        except HostSyntaxError as error:
            raise DiscoveryFailedError(f"{error.piece[:80]!r} is no host: {error.reason}", kind=_NONSENSE) from None

        if not hosts.hosts:
            raise DiscoveryFailedError("it names no host that has a slot", kind="none")
        return hosts

    def refuse(self, failure: DiscoveryFailedError) -> DiscoveryImpossibleError:
        """What to raise where there is no use in asking again."""
        return DiscoveryImpossibleError(self._command, str(failure))


@contextlib.contextmanager
def open_script(spec: JobSpec) -> Iterator[DiscoveryScript]:
    """The script of a job; it runs in the working directory of hvdrun.

    Raises:
        HvdrunError: the directory was removed, or the job has no script.
    """
    if spec.limits.elasticity is None or spec.limits.elasticity.script is None:
        raise UsageError("no script names the hosts of this job: give one with --host-discovery-script.")
    with ScriptWatchdog(os.environ) as watchdog:
        yield DiscoveryScript(
            spec.limits.elasticity.script, spec.limits.elasticity.slots_per_host, find_directory(), watchdog
        )


def find_now(spec: JobSpec) -> HostList:
    """Run the script of a job once, and return its hosts.

    Raises:
        HvdrunError: the script has not printed the hosts.
    """
    with open_script(spec) as script:
        try:
            return asyncio.run(script.ask())
        except DiscoveryFailedError as failure:
            raise script.refuse(failure) from failure


class _Output:
    """A pipe for what the script writes. No more is kept than one byte beyond the limit.

    The end of the pipe means nothing: a process that the script has started may keep it open.

    Args:
        limit: how many bytes the script may write.

    writing: the descriptor for the script.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = b""
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        os.close(self.writing)

    def read_all(self) -> bytes:
        """What was written until now."""
        while len(self._kept) <= self._limit and self._read():
            pass
        return self._kept

    def _read(self) -> bool:
        """Read the next piece; returns whether there was one."""
        try:
            piece = os.read(self._reading, _PIECE_BYTES)
        except BlockingIOError:
            return False
        self._kept += piece[: max(0, self._limit + 1 - len(self._kept))]
        return True


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the script: its process group, and its descendants if it has not exited."""
    below = []
    if process.returncode is None:
        below = list(processes.descendants(process.pid))
    # Else another process may have its number.
    if process.returncode is None or processes.look(process.pid) is None:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
    for member in below:
        processes.kill(member, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # the kernel has not ended it yet
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
