"""Finds what a job left on this machine, and only what that job left: others may run jobs beside the tests.

Everything a test starts is marked by a name that nothing else has. A process belongs to the test when the mark stands
in the environment it was started with, in its command line, or in its working directory; so it is found wherever it
went, a session of its own or init's care included. Listening sockets need no look of their own: each is held by a
process, and is reported with it.
"""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what is put there is what is looked for
MARK = "HVDRUN_TEST_ID"
LIMIT_SECONDS = 20.0  # for what takes a moment to end: no more than five seconds where nothing else runs
_PAUSE_SECONDS = 0.05
_LISTENING = "0A"  # as the kernel writes the state
_DOUBT = " (or of another program on this machine, which made it meanwhile and has ended)"
_CLEAN_LOOKS = 2  # a process may be between fork and exec while one looks


@dataclass(frozen=True, slots=True)
class LeftProcess:
    """A process that a test should have ended."""

    pid: int
    parent: int
    command: str
    listens: tuple[str, ...] = ()

    def __str__(self) -> str:
        sockets = f", listening on {', '.join(self.listens)}" if self.listens else ""
        return f"process {self.pid} (parent {self.parent}){sockets}: {self.command}"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """All that a test left behind."""

    processes: tuple[LeftProcess, ...] = ()
    paths: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.paths)

    def __str__(self) -> str:
        files = [f"file {path}{_DOUBT if path.parent == SHARED_MEMORY else ''}" for path in self.paths]
        return "\n".join([*map(str, self.processes), *files])


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks for leftovers from its making on.

    mark: what nothing but this test has in a name or a variable.
    temporary: the folder that the test's processes have as TMPDIR; it is to be empty in the end.
    """

    mark: str
    temporary: Path
    _known: frozenset[Path] = field(default_factory=lambda: frozenset(_shared_paths()))

    @classmethod
    def begin(cls, room: Path) -> Self:
        """Watch over a folder made for one test, with a name that exists once."""
        temporary = room / "tmp"
        temporary.mkdir()
        return cls(room.name, temporary)

    def environment(self) -> dict[str, str]:
        """The variables that mark a process, and keep its temporary files where they are looked for."""
        return {MARK: self.mark, "TMPDIR": str(self.temporary)}

    def processes(self) -> tuple[LeftProcess, ...]:
        """The test's processes that run now, children after their parents."""
        found = [process for process in psutil.process_iter() if self._owns(process.pid)]
        return tuple(sorted(filter(None, map(_describe, found)), key=lambda process: process.pid))

    def look(self) -> Leftovers:
        """What is left at this moment."""
        processes = self.processes()
        own = {process.pid for process in processes}
        strangers = [path for path in _shared_paths() if path not in self._known and not _is_used_by_others(path, own)]
        return Leftovers(processes, (*sorted(self.temporary.iterdir()), *strangers))

    def settle(self, limit_seconds: float = LIMIT_SECONDS) -> Leftovers:
        """What is still left after the limit; it returns as soon as nothing is.

        What appears when no process of the test is left any more is not the test's: others begin and end meanwhile.
        """
        deadline = time.monotonic() + limit_seconds
        clean_looks = 0
        suspects: frozenset[Path] | None = None  # paths that were there at all looks since the last process was seen
        while True:
            left = self.look()
            if left.processes:
                suspects = None
            else:
                suspects = frozenset(left.paths) if suspects is None else suspects & frozenset(left.paths)
                left = Leftovers(paths=tuple(path for path in left.paths if path in suspects))
            clean_looks = 0 if left else clean_looks + 1
            if clean_looks == _CLEAN_LOOKS or (left and time.monotonic() > deadline):
                return left
            time.sleep(_PAUSE_SECONDS)

    def sweep(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Kill every process of the test; files among those of others stay, since whose they are is only inferred."""
        deadline = time.monotonic() + limit_seconds
        while (doomed := self.processes()) and time.monotonic() < deadline:
            for process in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)

    def _owns(self, pid: int) -> bool:
        if pid == os.getpid():
            return False
        mark = os.fsencode(self.mark)
        return any(mark in text for text in _read_names(pid, "environ", "cmdline"))


def make_room() -> Path:
    """A folder for one test: short, because sockets are made in it, whose names the kernel limits to 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="hvt-"))


def _shared_paths() -> Iterator[Path]:
    """What a job may leave among what others keep; its temporary files are in a folder of their own."""
    if SHARED_MEMORY.is_dir():
        yield from SHARED_MEMORY.iterdir()


def _read_names(pid: int, *parts: str) -> Iterator[bytes]:
    """What /proc shows of a process in these files, and the name of its working directory."""
    for part in parts:
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            yield Path(f"/proc/{pid}/{part}").read_bytes()
    with contextlib.suppress(OSError):
        yield os.fsencode(Path(f"/proc/{pid}/cwd").readlink())


def _is_used_by_others(path: Path, own: set[int]) -> bool:
    """Whether a process outside the test has this path open, in its memory or in its environment."""
    name = os.fsencode(path)
    return any(
        name in text
        for process in psutil.process_iter()
        if process.pid not in own
        for text in (*_read_names(process.pid, "environ", "cmdline", "maps"), *_open_files(process.pid))
    )


def _open_files(pid: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.fsencode(descriptor.readlink())


def _describe(process: psutil.Process) -> LeftProcess | None:
    """What the failure says of it; None when it ended meanwhile."""
    try:
        listens = tuple(dict.fromkeys([*list_listening(process.pid), *_name_unix_sockets(process)]))
        command = " ".join(" ".join(process.cmdline()).split()) or f"[{process.name()}]"
        return LeftProcess(process.pid, process.ppid(), command, listens)
    except psutil.Error:
        return None


def list_listening(pid: int) -> Iterator[str]:
    """The addresses and ports on which a process accepts TCP connections, as its own network has them.

    The kernel lists those that listen first: connections, of which a test may make thousands, are not read.
    """
    sockets = set(_open_files(pid))
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/net/{name}").open(encoding="ascii") as lines:
            next(lines)  # the names of the columns
            for fields in map(str.split, lines):
                if fields[3] != _LISTENING:
                    break
                if f"socket:[{fields[9]}]".encode() in sockets:
                    words, _, port = fields[1].partition(":")
                    yield f"{_decode_address(family, words)}:{int(port, 16)}"


def _decode_address(family: socket.AddressFamily, words: str) -> str:
    """From the kernel's words of four bytes, each in the order of this machine."""
    packed = b"".join(int(words[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(words), 8))
    return socket.inet_ntop(family, packed)


def _name_unix_sockets(process: psutil.Process) -> Iterator[str]:
    for connection in process.net_connections("unix"):
        if connection.laddr:
            yield str(connection.laddr)
