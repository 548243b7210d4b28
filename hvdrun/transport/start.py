"""Starts an agent through a shell on its host, and finds out why it did not start.

The command line is constant, but for a number of seconds. The interpreter's path and the user's prefix follow on
standard input, which other users of the host cannot read. The agent's output begins behind a sentinel; what the user's
shell or the prefix prints before is skipped.
"""

import math
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hvdrun.processes.child import last_line
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.transport_errors import (
    AgentStartError,
    DirectoryMissingError,
    HvdrunMissingError,
    PythonMissingError,
    PythonTooOldError,
    RemotePrefixError,
    TransportError,
    advise_to_try,
)
from hvdrun.version import __version__
from rendezvous.wire import codec
from rendezvous.wire.orders import Wait

# Understood by every login shell, csh and fish too. bash where there is one, since prefixes are written for it.
_COMMAND = (
    "exec sh -c 's=sh; command -v bash >/dev/null 2>&1 && s=bash; exec $s -c \"$0\"' "
    "'IFS= read -r {limit}line; eval \"$line\"'"
)
_LIMIT = "${{BASH_VERSION:+-t{seconds}}} "  # other shells have no limit
_LEAST_SECONDS = 5  # for one line, which is sent immediately
SENTINEL = b"\x01hvdrun-agent\x02"
_PREFIX_SENTINEL = b"\x01hvdrun-prefix\x02"  # a line with the prefix' exit code follows
_STATUS = re.compile(re.escape(_PREFIX_SENTINEL) + rb"(\d+)\n")
_PREFIX_FAILED = 121  # an exit code that no shell or agent has
_DIRECTORY_MISSING = 122  # the same
_GARBAGE_BYTES = 16 * 1024
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """How to start an agent.

    python: the interpreter there. prefix: shell commands that prepare its environment; bash runs them, else sh.
    directory: the workers' folder, which has to exist after the prefix.
    wrapper: the words of a program that runs the interpreter, in a container for example.
    launcher_timeout_seconds: how long the agent waits for the next order until the job begins; None: without a limit.
    """

    python: str
    prefix: str | None = None
    directory: str | None = None
    launcher_timeout_seconds: float | None = None
    wrapper: tuple[str, ...] = ()

    def command(self) -> str:
        """The command of a shell that runs one line. It waits for the line no longer than an agent for orders."""
        if self.launcher_timeout_seconds is None:
            return _COMMAND.format(limit="")
        seconds = max(_LEAST_SECONDS, math.ceil(self.launcher_timeout_seconds))
        return _COMMAND.format(limit=_LIMIT.format(seconds=seconds))

    def script(self) -> bytes:
        """The line for the shell that `command` starts."""
        python = self.python
        word = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
        parts = []
        if self.prefix is not None:
            parts.append(f"p=$(printf '{_write_octal(self.prefix)}')")
            failed = f"printf '{_write_octal(_PREFIX_SENTINEL.decode())}%s\\n' $s >&2; exit {_PREFIX_FAILED}"
            parts.append(f'eval "$p" </dev/null || {{ s=$?; {failed}; }}')
        # The wrapper may name files of the folder.
        if self.directory is not None:
            folder = f"\"$(printf '{_write_octal(self.directory)}')\""
            check = f"[ -d {folder} ]"
            if self.wrapper:
                check = f"cd {folder}"
            parts.append(f"{check} || exit {_DIRECTORY_MISSING}")

        sentinel = _write_octal(SENTINEL.decode())
        begin = f"printf '{sentinel}' >&2; printf '{sentinel}'"
        run = f"exec {word} -P -m hvdrun.agent"
        if self.wrapper:
            # The sentinel is printed inside, so that what the wrapper prints is skipped too.
            parts.append(f"exec {shlex.join(self.wrapper)} sh -c {shlex.quote(f'{begin}; {run}')}")
        else:
            parts += [begin, run]
        return "; ".join(parts).encode(errors="surrogateescape") + b"\n"

    def encode_start(self) -> bytes:
        """The line for the shell and the agent's first order, in one piece, so that every agent gets a first order."""
        return self.script() + codec.encode_order(Wait(self.launcher_timeout_seconds))

    def explain(self, host: str, exit_code: int, errors: bytes, before: bytes, way: str) -> TransportError:
        """Why the agent did not start.

        exit_code: the exit code of the shell or the interpreter; negative if there is none.
        errors: the end of standard error. before: the output before the sentinel. way: the program that ran the shell.
        """
        # A trap of the prefix may have printed more.
        if self.prefix is not None and (status := _STATUS.search(errors)):
            said = last_line(errors[: status.start()]) or last_line(errors[status.end() :])
            return RemotePrefixError(host, self.prefix, int(status[1]), said)

        earlier, sentinel, own = errors.rpartition(SENTINEL)
        said = last_line(own) or last_line(earlier) or last_line(before)
        if exit_code == _DIRECTORY_MISSING and self.directory is not None and not sentinel:
            return DirectoryMissingError(host, self.directory)
        if sentinel and exit_code == _NOT_FOUND:
            return PythonMissingError(host, self.python, "no such file")
        if sentinel and exit_code == _NOT_EXECUTABLE:
            return PythonMissingError(host, self.python, "it cannot be executed")
        if b"No module named 'hvdrun" in own or b"No module named hvdrun" in own:
            return HvdrunMissingError(host, self.python, __version__)
        if b"Unknown option: -P" in own:
            return PythonTooOldError(host, self.python)
        how = f"exit code {exit_code}" if exit_code >= 0 else "it ended without an exit code"
        # As of a shell that reads nothing.
        if exit_code == 0 and not sentinel:
            how = f"{how}: its command must pass standard input on"
        remedy = f"Run {self.python} -m hvdrun --version there to see why" if sentinel else advise_to_try(way)
        if exit_code == 1 and own.strip() and len(own.strip().splitlines()) == 1:
            remedy = ""  # the agent's own sentence; what Python itself reports has more lines
        if self.prefix is not None and not sentinel:
            remedy = f"The shell ends there if --remote-prefix has exec or exit. {remedy}"
        return AgentStartError(host, how, said, remedy)


def make_agent(spec: JobSpec) -> RemoteAgent:
    """How a job starts its agents on other hosts."""
    return RemoteAgent(
        spec.remote.interpreter,
        spec.remote.prefix,
        str(spec.workers.directory),
        spec.limits.effective_launcher_timeout_seconds,
        spec.remote.agent_prefix,
    )


async def find_sentinel(read: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bytes]:
    """What came before the agent's output, and the beginning of its output; empty if the output ended before."""
    seen = b""
    while chunk := await read():
        seen += chunk
        before, sentinel, after = seen.partition(SENTINEL)
        if sentinel:
            return before, after or await read()
        seen = seen[-_GARBAGE_BYTES:]
    return seen, b""


def last_words(errors: bytes) -> str:
    """The last line that a started agent wrote to standard error."""
    return last_line(errors.rpartition(SENTINEL)[2])


def add_last_words(how: str, errors: bytes) -> str:
    """How an agent ended, with its last words."""
    last = last_words(errors)
    if last:
        return f"{how}: {last}"
    return how


def _write_octal(text: str) -> str:
    """The text for printf, in one line: it may have newlines."""
    return "".join(f"\\{byte:03o}" for byte in text.encode(errors="surrogateescape"))
