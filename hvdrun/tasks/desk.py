"""The launcher's end of a program that runs functions: hands its tasks to the workers, and gives it what comes back."""

import asyncio
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from hvdrun.errors import LaunchError
from hvdrun.tasks.messages import Body, Delivered, Ended, EndTasks, Message, RunTask, collect, receive, send
from rendezvous.core.model import Worker
from rendezvous.core.outcome import SIGNAL_OFFSET, Outcome
from rendezvous.wire.tasks import OutcomeHead

_CALLER_GONE = "the program that runs functions here has gone"
_MOST_TAIL_CHARACTERS = 16_000
_END_SECONDS = 5.0  # for the last messages to be taken


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    body: Body

    def pieces(self) -> Iterator[bytes]:
        return self.body.pieces()


class Desk:
    """Of one job; belongs to one event loop, from `open` on. A `rendezvous.wire.tasks.TaskDesk`.

    connection: to the program; the desk's from now on.
    program: a descriptor of its process (a pidfd), which none of its forked children keeps as they keep the connection;
        None where there is none.
    """

    def __init__(self, connection: socket.socket, program: int | None = None) -> None:
        self._connection = connection
        self._program = program
        self._task: _Task | None = None
        self._is_over = False
        self._news = asyncio.Event()
        self._delivered: set[tuple[Worker, int]] = set()
        self._held: dict[tuple[Worker, int], Delivered] = {}  # their output is not printed yet
        self._written: set[tuple[Worker, int]] = set()
        self._waiting: deque[Message] = deque()  # the program is behind
        self._rank_of: Callable[[Worker], int] = lambda _: 0
        self._stop: Callable[[int, str], None] = lambda _code, _reason: None

    def open(self, rank_of: Callable[[Worker], int], stop: Callable[[int, str], None]) -> None:
        """Take what the program says, from now on.

        Args:
            rank_of: the rank of a worker.
            stop: ends the job, with an exit code and the reason; called when the program has gone.
        """
        self._rank_of = rank_of
        self._stop = stop
        self._connection.setblocking(False)  # noqa: FBT003 - socket's signature
        asyncio.get_running_loop().add_reader(self._connection, self._read)
        if self._program is not None:
            asyncio.get_running_loop().add_reader(self._program, self._note_end)

    async def next(self, after: int) -> _Task | None:
        """See `TaskDesk`."""
        while True:
            if self._task is not None and self._task.number > after:
                return self._task
            if self._is_over:
                return None
            await self._news.wait()

    async def take(self, head: OutcomeHead, pieces: AsyncIterator[bytes]) -> None:
        """See `TaskDesk`.

        Raises:
            LaunchError: there is no room for it.
        """
        try:
            body = await collect(pieces, head.size)
        except OSError as error:
            raise LaunchError(f"what the functions return cannot be kept on this machine: {error}") from error
        is_asked = self._task is not None and head.number == self._task.number
        if body is None or not is_asked or (head.worker, head.number) in self._delivered:
            if body is not None:
                body.close()
            return
        self._delivered.add((head.worker, head.number))
        rank = self._rank_of(head.worker)
        self._held[head.worker, head.number] = Delivered(rank, head.number, head.failed, head.follows_another, body)
        self._pass_on(head.worker, head.number)

    def is_done(self, worker: Worker) -> bool:
        """See `TaskDesk`."""
        return self._is_over and (self._task is None or (worker, self._task.number) in self._delivered)

    def note_written(self, worker: Worker, number: int) -> None:
        """All is printed that a worker has written up to this outcome."""
        self._written.add((worker, number))
        self._pass_on(worker, number)

    def _pass_on(self, worker: Worker, number: int) -> None:
        """Say what has become of a task when its output is printed."""
        if (worker, number) in self._written and (worker, number) in self._held:
            self._say(self._held.pop((worker, number)))

    async def close(self, outcome: Outcome, last_lines: tuple[str, ...]) -> None:
        """Say how the job has ended."""
        lines, characters = deque[str](), 0
        for line in reversed(last_lines):
            characters += len(line)
            if characters > _MOST_TAIL_CHARACTERS:
                break
            lines.appendleft(line)
        for held in self._held.values():  # of a host that was lost meanwhile
            self._say(held)
        self._say(
            Ended(
                outcome.exit_code == 0,
                outcome.exit_code,
                outcome.reason,
                outcome.rank,
                outcome.returncode,
                tuple(lines),
            )
        )
        deadline = asyncio.get_running_loop().time() + _END_SECONDS
        while self._waiting and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - the program may stand still
            await asyncio.sleep(0.01)

    def _read(self) -> None:
        try:
            message = receive(self._connection)
        except BlockingIOError:
            return
        match message:
            case RunTask(number, body):
                self._take_task(_Task(number, body))
            case EndTasks():
                self._is_over = True
            case _:
                self._note_end()
                return
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _take_task(self, task: _Task) -> None:
        """The program sends the next one when all outcomes of the last have been said."""
        if self._task is not None:
            self._task.body.close()
        self._task = task
        self._delivered.clear()
        self._written.clear()

    def _note_end(self) -> None:
        """The program has closed the connection, or has ended."""
        asyncio.get_running_loop().remove_reader(self._connection)
        if self._program is not None:
            asyncio.get_running_loop().remove_reader(self._program)
        self._stop(SIGNAL_OFFSET + signal.SIGTERM, _CALLER_GONE)

    def _say(self, message: Message) -> None:
        self._waiting.append(message)
        self._write()

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                send(self._connection, self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            loop.add_writer(self._connection, self._write)
            return
        except OSError:  # the program has gone, which is read as well
            self._waiting.clear()
        loop.remove_writer(self._connection)
