"""A forkserver of a test's own, asked as an agent asks it, by a test that is the subreaper in the agent's place."""

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hvdrun.agent import prefork
from rendezvous.wire.processes import LENGTH, Forked, ForkRequest, Message, decode, encode
from tests.waiting import LIMIT_SECONDS

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that waits at its gate.

    outputs: what to read its standard output and error from.
    """

    pid: int
    outputs: tuple[int, int]
    gate: int

    def end(self, *, run: bool = True) -> tuple[int, str, str]:
        """Let it run, or give it up: its exit code, as `subprocess` has it, and what it wrote."""
        if run:
            os.write(self.gate, b"!")
        os.close(self.gate)
        texts = []
        for descriptor in self.outputs:
            with os.fdopen(descriptor, encoding="utf-8", errors="surrogateescape", newline="") as output:
                texts.append(output.read())
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), texts[0], texts[1]


class Server:
    """A forkserver that runs, and the agent's end of its socket.

    environment: its own and its workers'.
    """

    def __init__(self, process: subprocess.Popen[bytes], agent: socket.socket, environment: Mapping[str, str]) -> None:
        self.process = process
        self.agent = agent
        self.environment = environment
        self._numbers = count()

    def hear(self) -> Message:
        """The forkserver's next message."""
        head = self.agent.recv(LENGTH.size, socket.MSG_WAITALL)
        return decode(self.agent.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL))

    def fork(self, folder: Path, *words: str, memory: int | None = None) -> Worker:
        """Ask for a worker that runs `python words` in this folder; it waits at its gate.

        memory: the descriptor of its memory of snapshots.
        """
        number = next(self._numbers)
        out, err, gate = os.pipe(), os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDWR)  # as subprocess opens it
        request = ForkRequest(
            number=number,
            executable=sys.executable,
            arguments=("python", *words),
            directory=str(folder),
            environment=self.environment,
            threads=1,
        )
        memories = () if memory is None else (memory,)
        socket.send_fds(self.agent, [encode(request)], (null, out[1], err[1], gate[0], *memories))
        for descriptor in (null, out[1], err[1], gate[0]):
            os.close(descriptor)
        answer = self.hear()
        assert isinstance(answer, Forked)
        assert answer.number == number
        return Worker(answer.pid, (out[0], err[0]), gate[1])


@contextmanager
def subreaping() -> Iterator[None]:
    """The children of a forkserver's children become this process' own."""
    libc = ctypes.CDLL(None)
    before = ctypes.c_int()
    assert libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) == 0
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


@contextmanager
def serving(
    folder: Path,
    words: Sequence[str] = ("script.py",),
    modules: Sequence[str] = (),
    preload: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A forkserver for the program of these words, with its outputs in files as they are with an agent.

    preload: the text of the user's sitecustomize.
    environment: variables that it and its workers have besides the test's own.
    """
    agent, theirs = socket.socketpair()
    agent.settimeout(LIMIT_SECONDS)
    variables = {**os.environ, **(environment or {})}
    if preload is not None:
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(preload)
        variables["PYTHONPATH"] = str(folder / "site")
    given = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
    with subreaping(), agent, theirs, (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        process = subprocess.Popen(
            prefork.make_command((sys.executable, *words), theirs.fileno(), tuple(modules)),
            cwd=folder,
            env=prefork.make_environment(given),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        try:
            yield Server(process, agent, variables)
        finally:
            agent.close()
            process.wait(LIMIT_SECONDS)


@contextmanager
def running(folder: Path, script: str | None = None, **options: object) -> Iterator[Server]:
    """A forkserver that has said that it is ready, for script.py with this text; the options are those of `serving`."""
    if script is not None:
        (folder / "script.py").write_text(script)
    with serving(folder, **options) as server:
        server.hear()
        yield server
