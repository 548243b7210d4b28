"""The launcher's end: tasks go out once they are there, outcomes come back when their output was shown."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from itertools import repeat
from tempfile import TemporaryFile

import pytest

from hvdrun.errors import LaunchError
from hvdrun.tasks import messages
from hvdrun.tasks.dispatcher import Dispatcher
from hvdrun.tasks.messages import (
    INLINE_BYTES,
    Body,
    Delivered,
    Ended,
    EndTasks,
    Message,
    Refused,
    RunTask,
    collect,
    receive,
    send,
)
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import blame_host, succeed
from rendezvous.wire.tasks import OutcomeHead
from tests.descriptors import none_free
from tests.waiting import in_loop

WORKERS = [Worker(Slot("a", slot), 1) for slot in range(2)]


class Story:
    """A dispatcher, and the program's end of its connection."""

    def __init__(self, program: int | None = None) -> None:
        self.program, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs = theirs
        self.dispatcher = Dispatcher(theirs, program)
        self.stopped = asyncio.Event()
        self.is_ending = False
        self.dispatcher.open(lambda worker: worker.slot.index, lambda *_: self.stopped.set(), lambda: self.is_ending)

    async def begin(self, number: int = 1) -> None:
        """Send a task, which the dispatcher has then."""
        send(self.program, RunTask(number, Body(b"task")))
        await self.dispatcher.next(number - 1)

    async def hear(self) -> Message | None:
        """The next that the dispatcher says."""
        return await asyncio.to_thread(receive, self.program)

    def close(self) -> None:
        """End."""
        for end in (self.program, self.theirs):
            if end.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(end)
                end.close()


async def stream(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 10_000):
        yield data[start : start + 10_000]


@in_loop
async def test_each_waiting_worker_gets_each_task_once_and_then_their_end() -> None:
    story = Story()
    waiting = [asyncio.create_task(story.dispatcher.next(0)) for _ in WORKERS]
    send(story.program, RunTask(1, Body(b"first")))
    tasks = await asyncio.gather(*waiting)
    assert [(task.number, *task.pieces()) for task in tasks if task] == [(1, b"first")] * 2
    send(story.program, EndTasks())
    assert await story.dispatcher.next(1) is None
    late = await story.dispatcher.next(0)  # a worker that replaces another
    assert late is not None
    story.close()


@in_loop
@pytest.mark.parametrize("size", [3, 2 * INLINE_BYTES])
async def test_an_outcome_is_sent_once_and_after_its_output(size: int) -> None:
    story = Story()
    await story.begin()
    head = OutcomeHead(WORKERS[1], 1, size, failed=True)
    await story.dispatcher.take(head, stream(b"x" * size))
    await story.dispatcher.take(OutcomeHead(WORKERS[1], 7, size), stream(b"x" * size))  # of no task that was sent
    await story.dispatcher.take(head, stream(b"x" * size))  # its acknowledgement was lost
    story.dispatcher.note_written(WORKERS[0], 1)
    story.program.setblocking(False)  # noqa: FBT003 - socket's signature
    with pytest.raises(BlockingIOError):
        receive(story.program)
    story.program.setblocking(True)  # noqa: FBT003 - socket's signature
    story.dispatcher.note_written(WORKERS[1], 1)
    said = await story.hear()
    assert isinstance(said, Delivered)
    assert (said.rank, said.number, said.failed) == (1, 1, True)
    with said.body.open() as file:
        assert file.read() == b"x" * size
    said.body.close()
    await story.dispatcher.close(succeed(), ())
    assert isinstance(await story.hear(), Ended)
    story.close()


@in_loop
async def test_an_outcome_that_breaks_off_is_not_taken_and_may_come_again() -> None:
    story = Story()
    await story.begin()
    story.dispatcher.note_written(WORKERS[0], 1)
    for size in (3, 2 * INLINE_BYTES):
        await story.dispatcher.take(OutcomeHead(WORKERS[0], 1, size + 1), stream(b"x" * size))
    await story.dispatcher.take(OutcomeHead(WORKERS[0], 1, 3), stream(b"xyz"))
    said = await story.hear()
    assert isinstance(said, Delivered)
    assert said.body.data == b"xyz"
    story.close()


@in_loop
async def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()

    async def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hvdrun.tasks.dispatcher.collect", fail)
    with pytest.raises(LaunchError, match=r"no room for what the functions return: .*No space left"):
        await story.dispatcher.take(OutcomeHead(WORKERS[0], 1, 3), stream(b"xyz"))
    story.close()


@in_loop
async def test_a_program_that_reads_late_misses_nothing() -> None:
    story = Story()
    count = 200  # more than a socket holds
    for number in range(1, count + 1):
        await story.begin(number)
        story.dispatcher.note_written(WORKERS[0], number)
        await story.dispatcher.take(OutcomeHead(WORKERS[0], number, 3000), stream(b"x" * 3000))
    heard = [await story.hear() for _ in range(count)]
    assert [said.number for said in heard if isinstance(said, Delivered)] == list(range(1, count + 1))
    story.close()


@in_loop
async def test_outcomes_of_a_host_that_is_lost_come_before_the_end_with_the_last_lines_that_fit() -> None:
    story = Story()
    await story.begin()
    await story.dispatcher.take(OutcomeHead(WORKERS[0], 1, 3), stream(b"xyz"))
    report = b"r" * (4 * INLINE_BYTES)
    await story.dispatcher.close(blame_host("a", "gone"), (*repeat("x" * 1000, 50), "last"), report)
    assert isinstance(await story.hear(), Delivered)
    end = await story.hear()
    assert isinstance(end, Ended)
    assert not end.succeeded
    assert end.reason == "host a was lost: gone"
    assert end.last_lines[-1] == "last"
    assert len(end.last_lines) < 20
    assert end.body is not None
    assert b"".join(end.body.pieces()) == report
    end.body.close()
    story.close()


@in_loop
async def test_a_program_that_closes_or_ends_while_a_child_of_it_holds_the_connection_stops_the_job() -> None:
    story = Story()
    story.program.close()
    await story.stopped.wait()
    story.close()
    process = await asyncio.create_subprocess_exec("sleep", "100")
    pidfd = os.pidfd_open(process.pid)
    story = Story(pidfd)
    process.kill()
    await story.stopped.wait()
    await process.wait()
    story.close()
    os.close(pidfd)


@in_loop
async def test_a_body_can_be_read_by_several_at_a_time() -> None:
    body = await collect(stream(b"a" * messages.INLINE_BYTES + b"b"), INLINE_BYTES + 1)
    assert body is not None
    pairs = list(zip(body.pieces(), body.pieces(), strict=True))
    assert b"".join(one for one, _ in pairs) == b"".join(other for _, other in pairs)
    body.close()


def test_messages_before_the_close_of_the_other_side_are_received_even_if_it_left_some_unread() -> None:
    program, launcher = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused = Refused(("there is no such folder.",), 2)
    with program:
        send(program, EndTasks())
        send(launcher, refused)
        launcher.close()
        assert receive(program) == refused
        assert receive(program) is None


def test_a_message_for_whose_file_no_descriptor_is_free_is_an_error_and_no_other_file_is_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with TemporaryFile() as file:
            file.write(bytes(INLINE_BYTES + 1))
            send(ours, RunTask(1, Body.of(file)))
        with none_free(), pytest.raises(OSError, match="Too many open files"):
            receive(theirs)


@in_loop
async def test_a_dispatcher_that_cannot_receive_a_function_ends_the_job() -> None:
    story = Story()
    with TemporaryFile() as file:
        file.write(bytes(INLINE_BYTES + 1))
        send(story.program, RunTask(1, Body.of(file)))
    with none_free():
        await story.stopped.wait()
    story.close()
