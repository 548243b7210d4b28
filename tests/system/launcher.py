"""The real `hvdrun` as a test runs it: a process of its own, watched, with limits on every wait."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from hvdrun.processes.python_command import wants_torch
from tests.system.leftovers import LeftProcess, Watch
from tests.waiting import wait_until

LIMIT_SECONDS = 60.0
_CHUNK = 65536
PRELOAD = Path(__file__).with_name("preload")
# What is around the tests must not be taken for what is under test.
_FOREIGN = ("HVD_", "HOROVOD_", "GITHUB_", "SLURM_", "PBS_", "LSB_", "K_MPI_")

PATIENCE = {"HOROVOD_STALL_CHECK_TIME_SECONDS": f"{LIMIT_SECONDS:g}"}  # until hvdrun names who holds up the others
PLANTED = "ZeroDivisionError"  # an error that a test has put into hvdrun
# What hvdrun says where it, an agent or the sequencer has failed by an exception that nobody expected.
_BUG = re.compile(
    r"bug (?:in|of) hvdrun|^hvdrun: .* is gone: it ended with exit code 1 \(\w+Error"
    # A signal may come while Python starts.
    r"|^Traceback \(most recent call last\):\n(?: .*\n)*(?!KeyboardInterrupt)\S"
    r"|^.* exception was never retrieved$|^Exception ignored in: ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run ended; texts are UTF-8, other bytes as surrogates, and line ends are left as they came."""

    returncode: int
    stdout: str
    stderr: str


def is_pending(pid: int) -> bool:
    """Whether a signal waits for this process, which is not stopped."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    pending, blocked = int(fields["ShdPnd"], 16), int(fields["SigBlk"], 16)
    return bool(pending & ~blocked) and fields["State"][0] not in "TZX"


class Stream:
    """One of hvdrun's outputs, read as it comes, so that a full pipe never holds hvdrun up."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._arrived = threading.Condition()
        self._bytes = bytearray()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, name="output of hvdrun", daemon=True)
        self._reader.start()

    def text(self) -> str:
        """What has come until now."""
        with self._arrived:
            return self._bytes.decode(errors="surrogateescape")

    def wait_for(self, pattern: str, limit_seconds: float) -> re.Match[str]:
        """The first match of a regular expression (`^` and `$` match at lines) in what has come, or comes in time."""
        compiled = re.compile(pattern, re.MULTILINE)

        def is_decided() -> bool:
            return self._has_ended or compiled.search(self.text()) is not None

        with self._arrived:
            self._arrived.wait_for(is_decided, limit_seconds)
        found = compiled.search(self.text())
        if found is None:
            why = "ended without it" if self._has_ended else f"did not show it within {limit_seconds} s"
            raise AssertionError(f"waited for {pattern!r}, but the output {why}:\n{self.text()}")
        return found

    def close(self, limit_seconds: float = 5.0) -> str:
        """All of it: until its last writer has closed it, or the limit is over."""
        self._reader.join(limit_seconds)
        if not self._reader.is_alive():
            self._pipe.close()
        return self.text()

    def _read(self) -> None:
        while chunk := os.read(self._pipe.fileno(), _CHUNK):
            with self._arrived:
                self._bytes += chunk
                self._arrived.notify_all()
        with self._arrived:
            self._has_ended = True
            self._arrived.notify_all()


class Running:
    """An hvdrun that has been started; it leads a session, as it does on a terminal."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.pid = process.pid
        self.stdout = Stream(process.stdout)
        self.stderr = Stream(process.stderr)

    @property
    def is_running(self) -> bool:
        """Whether the end of hvdrun has not been seen."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signal hvdrun alone, as `kill PID` does.

        It waits for the delivery: of two signals that wait, the kernel delivers that with the lower number first.
        """
        self._process.send_signal(number)
        wait_until(lambda: not is_pending(self.pid), "the delivery")

    def send_to_terminal(self, number: signal.Signals) -> None:
        """Signal its whole process group, as a terminal does on Ctrl-C (SIGINT) or when it is closed (SIGHUP)."""
        os.killpg(self.pid, number)

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> Finished:
        """How it ended."""
        try:
            returncode = self._process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"hvdrun has not ended within {limit_seconds} s\n"
                f"--- stdout\n{self.stdout.text()}\n--- stderr\n{self.stderr.text()}"
            ) from None
        return Finished(returncode, self.stdout.close(), self.stderr.close())

    def close(self) -> None:
        """End it, if nothing else has, and let go of its outputs; nothing of hvdrun has failed unexpectedly."""
        if self.is_running:
            self._process.kill()
        self._process.wait(LIMIT_SECONDS)
        self.stdout.close()
        said = self.stderr.close()
        assert PLANTED in said or not _BUG.search(said), said


class Launcher:
    """Starts `python -m hvdrun` in a folder of its own. Called like a command, it waits for the end.

    Workers are executed (`--no-prefork`), which is cheapest for a short script, unless the script uses torch: then
    they are forked, and one import of torch serves all of them. A script with an optimizer compiles nothing, and is
    spared what torch imports for that (`preload`). A test of forked workers says `forks=True`.

    directory: where hvdrun runs; a test puts its scripts there.
    state: what holds the folders of detached jobs.
    """

    def __init__(self, room: Path) -> None:
        self.directory = room / "work"
        self.directory.mkdir()
        self.state = room / "state"
        self.watch = Watch.begin(room)
        self._started: list[Running] = []
        self._opened: list[subprocess.Popen[bytes]] = []

    def __call__(
        self,
        *arguments: str | Path,
        forks: bool | None = None,
        limit_seconds: float = LIMIT_SECONDS,
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
    ) -> Finished:
        """Run hvdrun with these arguments to its end."""
        return self.start(*arguments, forks=forks, environment=environment, stdin=stdin).wait(limit_seconds)

    def start(
        self,
        *arguments: str | Path,
        forks: bool | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        before: Sequence[str] = (),
        is_job: bool = False,
    ) -> Running:
        """Start hvdrun with these arguments, and with these variables besides the test's own.

        before: words of a command that is to start hvdrun, such as nohup.
        is_job: of a shell, which can continue it after Ctrl-Z; else hvdrun leads a session, as with `ssh -t`.
        """
        has_optimizer = any(b"optim" in text for text in self._read_scripts(arguments))
        preload = {"PYTHONPATH": str(PRELOAD)} if has_optimizer else {}
        return self.start_words(
            [*before, *self.command(*arguments, forks=forks)], {**preload, **(environment or {})}, stdin, is_job=is_job
        )

    def start_words(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        *,
        is_job: bool = False,
    ) -> Running:
        """Start a command that becomes hvdrun."""
        process = subprocess.Popen(
            words,
            cwd=self.directory,
            env={**self.environment(), **(environment or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=not is_job,
            process_group=0 if is_job else None,
        )
        running = Running(process)
        self._started.append(running)
        return running

    def open(self, *arguments: str | Path) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        """Start hvdrun for a test that reads its standard output at its own pace: the process, and what to read."""
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._opened.append(process)
        assert process.stdout is not None
        return process, process.stdout

    def command(self, *arguments: str | Path, forks: bool | None = None) -> list[str]:
        """The words that start hvdrun with these arguments."""
        if forks is None:
            forks = any(map(wants_torch, self._read_scripts(arguments)))
        return [sys.executable, "-m", "hvdrun", *(() if forks else ("--no-prefork",)), *map(str, arguments)]

    def _read_scripts(self, arguments: Sequence[str | Path]) -> Iterator[bytes]:
        """The files among the words of a command."""
        paths = (self.directory / argument for argument in arguments)
        return (path.read_bytes() for path in paths if path.is_file())

    def write(self, name: str, text: str) -> Path:
        """Put a script into the directory."""
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        return path

    def environment(self) -> dict[str, str]:
        """What hvdrun is started with: the tests' environment, marked, where `python` is the tests' own.

        A healthy rank of a busy machine may come late to a collective, and is not named for that. Torch's compiler
        makes a folder in TMPDIR as soon as it is imported, and leaves it; here it gets another one.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        search = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        inductor = str(self.directory.parent / "inductor")
        return {
            "HVD_CHECK_REPLICAS": "1",
            **PATIENCE,
            **kept,
            "PATH": search,
            "TORCHINDUCTOR_CACHE_DIR": inductor,
            "XDG_STATE_HOME": str(self.state),
            **self.watch.environment(),
        }

    def processes(self, words: str = "") -> tuple[LeftProcess, ...]:
        """The processes of this test that run now, those with these words in their command line."""
        return tuple(process for process in self.watch.processes() if words in process.command)

    @property
    def has_running(self) -> bool:
        """Something that the test started has not been seen to end."""
        return any(running.is_running for running in self._started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            for running in self._started:
                stack.callback(running.close)
            for process in self._opened:
                stack.enter_context(process)
                stack.callback(process.kill)
            stack.callback(self._check_logs)
            self.watch.sweep()

    def _check_logs(self) -> None:
        """Check what detached jobs have said, of which nobody may have read everything."""
        for file in self.state.rglob("*"):
            if file.is_file():
                said = file.read_text(encoding="utf-8", errors="replace")
                assert PLANTED in said or not _BUG.search(said), f"{file}: {said}"
