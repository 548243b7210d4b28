"""A host of the lab, in a test's hands."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.lab import kernel
from tests.lab.network import Network
from tests.lab.plan import HostPlan, SshdPlan, plan_interfaces
from tests.lab.process import HostProcess, end, find_processes, wait_for_entry
from tests.lab.sshd import Sshd
from tests.waiting import LIMIT_SECONDS

OWN_FOLDERS = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - each host has its own
_TORCH_S_OWN = "torchinductor_"  # a cache, which torch makes and keeps wherever a model is trained
_LISTENING = "0A"  # as the kernel writes the state in /proc/net/tcp
STILL = "TZ"  # the states of processes that are stopped, or have ended
_PAUSE_SECONDS = 0.01
Stream = int | IO[bytes] | None


def enter(pid: int, *namespaces: str) -> list[str]:
    """The command line that runs the words after it in namespaces of a process."""
    return ["nsenter", f"--target={pid}", *(f"--{namespace}" for namespace in namespaces), "--"]


class Host:
    """One host that runs.

    pid: its first process, as the tests see it; its end is the host's.
    home: the home of its user, root; what ssh of the lab needs is in its `.ssh`.
    network: its interfaces, to be cut and mended.
    sshd: its ssh server; on a host planned without one it is not started.
    """

    def __init__(self, plan: HostPlan, number: int, folder: Path, pid: int, switch: int) -> None:
        self.plan = plan
        self.name = plan.name
        self.pid = pid
        self.home = folder / "home"
        self._descriptor = os.pidfd_open(pid)
        self._started: list[subprocess.Popen[bytes]] = []
        self._stopped_before: set[int] = set()
        self._changes = 0
        self.network = Network(
            plan_interfaces(plan, number),
            on_host=lambda command, text: self._change([*enter(pid, "net"), *command], text),
            on_switch=lambda command, text: self._change([*enter(switch, "net"), *command], text),
        )
        self.sshd = Sshd(plan.sshd or SshdPlan(), folder, self._launch, self._find)

    def start(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | str | None = None,
        stdin: Stream = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host, as its user would who has logged in there; what is returned is the command.

        environment: besides a small one of the host's own, in which `python` is that of the tests.
        directory: where it runs; in its home otherwise.
        Raises ProcessLookupError when the host is not up.
        """
        if not self.is_up:
            raise ProcessLookupError(f"host {self.name} is not up: nothing can be started there")
        within = enter(self.pid, "mount", "uts", "ipc", "net")
        variables = {**self.environment(), **(environment or {})}
        with _children_in(self._descriptor):
            process = subprocess.Popen(
                [*within, "env", f"--chdir={directory or self.home}", "--", *map(str, command)],
                env=variables,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._started.append(process)
        with contextlib.suppress(FileNotFoundError):  # the host was destroyed meanwhile, and the command with it
            wait_for_entry(process, self.pid)
        return process

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | str | None = None,
        text: str = "",
        limit_seconds: float = LIMIT_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end, with this input.

        Raises AssertionError, with what came, when it has not ended within the limit; its session is killed then.
        """
        process = self.start(command, environment=environment, directory=directory, stdin=subprocess.PIPE)
        try:
            stdout, stderr = process.communicate(text.encode(), timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate(timeout=limit_seconds)
            raise AssertionError(
                f"{command} has not ended on {self.name} within {limit_seconds} s\n"
                f"--- stdout\n{stdout.decode(errors='replace')}\n--- stderr\n{stderr.decode(errors='replace')}"
            ) from None
        decoded = (stream.decode(errors="surrogateescape") for stream in (stdout, stderr))
        return subprocess.CompletedProcess(list(map(str, command)), process.returncode, *decoded)

    def environment(self) -> dict[str, str]:
        """The variables of a user of the host who has activated the tests' own virtual environment."""
        search = os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
        return {"PATH": search, "HOME": str(self.home), "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8"}

    def processes(self) -> tuple[HostProcess, ...]:
        """All processes of the host, those left out that are the lab's: its first one, and the sshd that listens."""
        return tuple(process for process in self._find() if process.pid_on_host != self.sshd.pid)

    def list_traces(self) -> Iterator[str]:
        """All that a job could leave on the host: processes, files in /tmp and /dev/shm, listeners."""
        for process in self.processes():
            yield str(process)
        for folder in OWN_FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                for path in self.locate(folder).iterdir():
                    if not path.name.startswith(_TORCH_S_OWN):
                        yield f"file {folder / path.name}"
        for kind in ("tcp", "tcp6"):
            lines = Path("/proc", str(self.pid), "net", kind).read_text(encoding="ascii").splitlines()[1:]
            for local, _, state in (line.split()[1:4] for line in lines):
                if state == _LISTENING:
                    yield f"{kind} listener on port {int(local.rpartition(':')[2], 16)}"

    def locate(self, path: Path) -> Path:
        """Where the tests see what the host has at this absolute path."""
        return Path("/proc", str(self.pid), "root", path.relative_to("/"))

    def describe(self) -> object:
        """Equal to an earlier answer if the host is as it was then: what runs, its files, its network, its server."""
        if not self.is_up:
            return None
        files = {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
        return self.pid, self._changes, self.sshd.pid, sorted(self.list_traces()), files

    def freeze(self) -> None:
        """Stop all processes of the host; its kernel continues to acknowledge what arrives."""
        self._changes += 1
        seen: set[int] = set()
        deadline = time.monotonic() + LIMIT_SECONDS
        while running := [process for process in self._find() if process.pid not in seen or not _is_still(process)]:
            for process in running:
                if process.pid not in seen and process.state == "T":
                    self._stopped_before.add(process.pid)
                seen.add(process.pid)
                _signal(process.pid, signal.SIGSTOP)
            if time.monotonic() > deadline:
                raise TimeoutError(f"host {self.name} has not stood still within {LIMIT_SECONDS} s: {running}")

    def thaw(self) -> None:
        """Let the processes continue that `freeze` has stopped."""
        for process in self._find():
            if process.pid not in self._stopped_before:
                _signal(process.pid, signal.SIGCONT)
        self._stopped_before.clear()

    def destroy(self) -> None:
        """End the host as a power cut does: without a word to anyone. It returns when nothing of it is left."""
        if self.is_up:
            self.network.remove()
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        self.wait()

    def end_all(self) -> None:
        """Kill all processes but the first, which waits for them: what they have used is counted as the lab's then."""
        end(self._find(), signal.SIGKILL)

    @property
    def is_up(self) -> bool:
        """Whether the host has not been destroyed."""
        return not select.select([self._descriptor], [], [], 0)[0]

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Wait until a host that was killed has ended; raises TimeoutError.

        The kernel waits in turn until those who started its processes have heard of their end.
        """
        deadline = time.monotonic() + limit_seconds
        while self.is_up:
            for process in self._started:
                process.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"host {self.name} has not ended {limit_seconds} s after it was killed")
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Let go of a host that has ended."""
        self.wait()
        for process in self._started:
            process.wait(LIMIT_SECONDS)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        os.close(self._descriptor)

    def _find(self) -> tuple[HostProcess, ...]:
        return find_processes(self.pid)

    def _change(self, command: list[str], text: str) -> str:
        self._changes += 1
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        if done.returncode != 0:
            raise OSError(f"'{' '.join(command)}' failed: {done.stderr.strip()}, given:\n{text}")
        return done.stdout

    def _launch(self, command: list[str]) -> None:
        done = self.run(command)
        if done.returncode != 0:
            raise OSError(f"'{' '.join(command)}' failed on {self.name}: {done.stderr}")


def _is_still(process: HostProcess) -> bool:
    """Whether it is stopped, or has ended, or waits in vfork() for a child that is stopped before it runs a program."""
    if process.state != "D":
        return process.state in STILL
    with contextlib.suppress(OSError):  # it has ended meanwhile
        folder = Path("/proc", str(process.pid), "task", str(process.pid))
        children = (folder / "children").read_text(encoding="ascii").split()
        return any(Path("/proc", child, "stat").read_text().rpartition(")")[2].split()[0] == "T" for child in children)
    return False


@contextlib.contextmanager
def _children_in(descriptor: int) -> Iterator[None]:
    """Have the children that this thread starts meanwhile live in a host's process-id namespace."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        kernel.enter(descriptor, kernel.NEW_PIDS)
        yield
    finally:
        kernel.enter(own, kernel.NEW_PIDS)
        os.close(own)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
