"""Starts an agent on a host where we have a shell, and finds out why it did not start.

The command line is constant text, but for a number of seconds: the interpreter's path and the user's prefix come after
it on standard input, where nobody else on the host can see them. What the user's shell or the prefix prints is skipped:
the agent's own output begins behind a mark.
"""

import math
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.failures import (
    AgentStartError,
    DirectoryMissingError,
    HvdrunMissingError,
    PythonMissingError,
    PythonTooOldError,
    RemotePrefixError,
    TransportError,
)
from hvdrun.version import __version__
from rendezvous.wire import codec
from rendezvous.wire.orders import Wait

# Understood by every login shell, csh and fish too. bash where there is one, since prefixes are written for it.
_COMMAND = (
    "exec sh -c 's=sh; command -v bash >/dev/null 2>&1 && s=bash; exec $s -c \"$0\"' "
    "'IFS= read -r {limit}line; eval \"$line\"'"
)
_LIMIT = "${{BASH_VERSION:+-t{seconds}}} "  # other shells know no limit
_LEAST_SECONDS = 5  # for one line, which is sent at once
MARK = b"\x01hvdrun-agent\x02"
_PREFIX_MARK = b"\x01hvdrun-prefix\x02"  # a line with the prefix' exit code follows
_STATUS = re.compile(re.escape(_PREFIX_MARK) + rb"(\d+)\n")
_PREFIX_FAILED = 121  # an exit code that nothing else has
_DIRECTORY_MISSING = 122  # the same
_GARBAGE_BYTES = 16 * 1024
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """How to start an agent.

    python: the interpreter there. prefix: shell commands that prepare its environment; for bash, if there is one.
    directory: what the workers need to exist there; it may be the prefix that brings it.
    wrapper: the words of a program that runs the interpreter, in a container for example.
    patience_seconds: how long it may hear nothing before it has been told of the job; None: without a limit.
    """

    python: str
    prefix: str | None = None
    directory: str | None = None
    patience_seconds: float | None = None
    wrapper: tuple[str, ...] = ()

    def command(self) -> str:
        """Starts a shell, which waits for one line no longer than for orders: its host may be cut off meanwhile."""
        if self.patience_seconds is None:
            return _COMMAND.format(limit="")
        seconds = max(_LEAST_SECONDS, math.ceil(self.patience_seconds))
        return _COMMAND.format(limit=_LIMIT.format(seconds=seconds))

    def script(self) -> bytes:
        """The line for the shell that `command` starts."""
        python = self.python
        word = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
        parts = []
        if self.prefix is not None:
            parts.append(f"p=$(printf '{_write_octal(self.prefix)}')")
            failed = f"printf '{_write_octal(_PREFIX_MARK.decode())}%s\\n' $s >&2; exit {_PREFIX_FAILED}"
            parts.append(f'eval "$p" </dev/null || {{ s=$?; {failed}; }}')
        if self.directory is not None:  # the wrapper's words may name files in it
            check = "cd" if self.wrapper else "[ -d"
            end = "" if self.wrapper else " ]"
            parts.append(f"{check} \"$(printf '{_write_octal(self.directory)}')\"{end} || exit {_DIRECTORY_MISSING}")
        mark = _write_octal(MARK.decode())
        begin = f"printf '{mark}' >&2; printf '{mark}'"
        run = f"exec {word} -P -m hvdrun.agent"
        if self.wrapper:  # whatever the wrapper prints is skipped too
            run = f"exec {shlex.join(self.wrapper)} sh -c {shlex.quote(f'{begin}; {run}')}"
        parts += [run] if self.wrapper else [begin, run]
        return "; ".join(parts).encode(errors="surrogateescape") + b"\n"

    def encode_start(self) -> bytes:
        """What the shell and the agent are sent, in one piece: no agent can wait for its first order for ever."""
        return self.script() + codec.encode_order(Wait(self.patience_seconds))

    def explain(self, host: str, exit_code: int, errors: bytes, before: bytes) -> TransportError:
        """Why the agent did not start.

        exit_code: of the shell or the interpreter, -1 where there is none.
        errors: the end of standard error. before: what came on standard output before the mark.
        """
        if self.prefix is not None and (status := _STATUS.search(errors)):  # a trap of its may have changed the rest
            said = _last_line(errors[: status.start()]) or _last_line(errors[status.end() :])
            return RemotePrefixError(host, self.prefix, int(status[1]), said)
        before_mark, mark, after_mark = errors.rpartition(MARK)
        said = _last_line(after_mark) or _last_line(before_mark) or _last_line(before)
        if exit_code == _DIRECTORY_MISSING and self.directory is not None and not mark:
            return DirectoryMissingError(host, self.directory)
        if mark and exit_code == _NOT_FOUND:
            return PythonMissingError(host, self.python, "no such file")
        if mark and exit_code == _NOT_EXECUTABLE:
            return PythonMissingError(host, self.python, "it cannot be executed")
        if b"No module named 'hvdrun" in after_mark or b"No module named hvdrun" in after_mark:
            return HvdrunMissingError(host, self.python, __version__)
        if b"Unknown option: -P" in after_mark:
            return PythonTooOldError(host, self.python)
        how = f"exit code {exit_code}" if exit_code >= 0 else "it ended without an exit code"
        if exit_code == 0 and not mark:  # a shell that reads nothing ends so
            how = f"{how}: its command must pass standard input on"
        return AgentStartError(host, how, said)


def make_agent(spec: JobSpec) -> RemoteAgent:
    """How a job starts its agents on other hosts."""
    return RemoteAgent(
        spec.remote.interpreter,
        spec.remote.prefix,
        str(spec.workers.directory),
        spec.limits.patience_seconds,
        spec.remote.agent_prefix,
    )


async def find_mark(read: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bytes]:
    """What came before the agent's own output, and the beginning of that; it is empty where there is none."""
    seen = b""
    while chunk := await read():
        seen += chunk
        before, mark, after = seen.partition(MARK)
        if mark:
            return before, after or await read()
        seen = seen[-_GARBAGE_BYTES:]
    return seen, b""


def last_words(errors: bytes) -> str:
    """What an agent that had started said last on standard error."""
    return _last_line(errors.rpartition(MARK)[2])


def add_last_words(how: str, errors: bytes) -> str:
    """How an agent ended, and what it said last."""
    last = last_words(errors)
    return f"{how}: {last}" if last else how


def _write_octal(text: str) -> str:
    """For printf: the text may hold newlines, and what is sent is one line."""
    return "".join(f"\\{byte:03o}" for byte in text.encode(errors="surrogateescape"))


def _last_line(data: bytes) -> str:
    return data.decode(errors="replace").strip().rpartition("\n")[2].strip()
