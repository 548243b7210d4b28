"""The launcher's part in running functions: passes tasks from the program to the workers, and outcomes back."""

import asyncio
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from hvdrun.errors import LaunchError
from hvdrun.tasks.messages import Body, Delivered, Ended, EndTasks, Message, RunTask, collect, receive, send
from rendezvous.core.model import Worker
from rendezvous.core.outcome import SIGNAL_OFFSET, Outcome
from rendezvous.wire.tasks import OutcomeHead

_PROGRAM_ENDED = "the program that called hvdrun.run() has ended"
_MOST_TAIL_CHARACTERS = 16_000
_END_SECONDS = 5.0  # for the program to read the last messages


class Dispatcher:
    """The tasks of one job; belongs to one event loop, from `open` on. A `rendezvous.wire.tasks.TaskDispatcher`.

    Args:
        connection: to the program; the dispatcher owns it.
        program: a pidfd of the program, None if there is none. It becomes readable when the program ends. The
            connection may not, as forked children of the program keep it open.
        is_watched: a person reads what the program prints.

    ready: how many workers have asked for their first function.
    """

    def __init__(self, connection: socket.socket, program: int | None = None, *, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        self.ready = 0
        self._connection = connection
        self._program = program

        self._task: RunTask | None = None
        self._is_over = False
        self._changed = asyncio.Event()
        self._delivered: set[tuple[Worker, int]] = set()
        self._held: dict[tuple[Worker, int], Delivered] = {}  # until their output is printed
        self._written: set[tuple[Worker, int]] = set()
        self._waiting: deque[Message] = deque()  # for the program to read the earlier ones
        self._has_sent_all = asyncio.Event()

        self._find_rank: Callable[[Worker], int] = lambda _: 0
        self._stop: Callable[[int, str], None] = lambda _code, _reason: None
        self._is_ending: Callable[[], bool] = lambda: False
        self._begun = 0

    def open(
        self, find_rank: Callable[[Worker], int], stop: Callable[[int, str], None], is_ending: Callable[[], bool]
    ) -> None:
        """Begin to read the program's messages.

        Args:
            find_rank: returns the rank of a worker.
            stop: ends the job, with an exit code and the reason; called when the program has ended.
            is_ending: whether it is decided how the job ends; then no worker gets another function.
        """
        self._find_rank = find_rank
        self._stop = stop
        self._is_ending = is_ending
        self._connection.setblocking(False)  # noqa: FBT003 - socket's signature
        asyncio.get_running_loop().add_reader(self._connection, self._read)
        if self._program is not None:
            asyncio.get_running_loop().add_reader(self._program, self._end_job, _PROGRAM_ENDED)

    async def next(self, after: int) -> RunTask | None:
        """See `TaskDispatcher`."""
        self.ready += after == 0
        while True:
            if self._task is not None and self._task.number > after and not self._is_ending():
                self._begun = self._task.number
                return self._task
            if self._is_over:
                return None
            await self._changed.wait()

    async def take(self, head: OutcomeHead, pieces: AsyncIterator[bytes]) -> None:
        """See `TaskDispatcher`.

        Raises:
            LaunchError: this machine has no room for it.
        """
        try:
            body = await collect(pieces, head.size)
        except OSError as error:
            raise LaunchError(f"this machine has no room for what the functions return: {error}") from error
        is_asked = self._task is not None and head.number == self._task.number
        if body is None or not is_asked or (head.worker, head.number) in self._delivered:
            if body is not None:
                body.close()
            return
        self._delivered.add((head.worker, head.number))
        rank = self._find_rank(head.worker)
        self._held[head.worker, head.number] = Delivered(rank, head.number, head.failed, head.follows_another, body)
        self._deliver(head.worker, head.number)

    def is_done(self, worker: Worker) -> bool:
        """See `TaskDispatcher`."""
        return self._is_over and (self._task is None or (worker, self._task.number) in self._delivered)

    def note_written(self, worker: Worker, number: int) -> None:
        """The worker's output up to this outcome is printed."""
        self._written.add((worker, number))
        self._deliver(worker, number)

    def _deliver(self, worker: Worker, number: int) -> None:
        """Send an outcome to the program once its output is printed."""
        if (worker, number) in self._written and (worker, number) in self._held:
            self._send(self._held.pop((worker, number)))

    async def close(self, outcome: Outcome, last_lines: tuple[str, ...], report: bytes = b"") -> None:
        """Send the program how the job ended.

        report: what --outcome writes.
        """
        lines, characters = deque[str](), 0
        for line in reversed(last_lines):
            characters += len(line)
            if characters > _MOST_TAIL_CHARACTERS:
                break
            lines.appendleft(line)

        # Outcomes from a host that was lost before its output came.
        for held in self._held.values():
            self._send(held)
        body = None
        with suppress(OSError):  # no room; the results are worth more
            body = Body.of_bytes(report)
        self._send(
            Ended(
                outcome.exit_code == 0,
                outcome.exit_code,
                outcome.reason,
                outcome.rank,
                outcome.returncode,
                tuple(lines),
                self._begun,
                body,
            )
        )

        with suppress(TimeoutError):  # the program may be suspended
            async with asyncio.timeout(_END_SECONDS):
                await self._has_sent_all.wait()

    def _read(self) -> None:
        try:
            message = receive(self._connection)
        except BlockingIOError:  # no message has come yet
            return
        except OSError as error:
            self._end_job(f"a function cannot be received: {error.strerror}")
            return

        match message:
            case RunTask():
                self._take_task(message)
            case EndTasks():
                self._is_over = True
            case _:
                self._end_job(_PROGRAM_ENDED)
                return

        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _take_task(self, task: RunTask) -> None:
        """Take the next task; the program has all outcomes of the last one."""
        if self._task is not None:
            self._task.body.close()
        self._task = task
        self._delivered.clear()
        self._written.clear()

    def _end_job(self, reason: str) -> None:
        asyncio.get_running_loop().remove_reader(self._connection)
        if self._program is not None:
            asyncio.get_running_loop().remove_reader(self._program)
        self._stop(SIGNAL_OFFSET + signal.SIGTERM, reason)

    def _send(self, message: Message) -> None:
        self._waiting.append(message)
        self._has_sent_all.clear()
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
        except OSError:  # the program has ended, which `_read` notices
            self._waiting.clear()
        loop.remove_writer(self._connection)
        self._has_sent_all.set()
