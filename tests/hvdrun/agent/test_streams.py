"""The workers' output on its way to the launcher, with a bounded amount in memory; and the workers' input."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from hvdrun.agent.spool import Spool
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.joining.channel import dial, make_client_context, make_server_context
from rendezvous.core.model import Slot, Worker
from rendezvous.server.authority import Authority
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentFailed, AgentMessage, Output, OutputStream, Remark, Written
from tests.waiting import happen, in_loop

WORKER = Worker(Slot("a", 0), 1)
OTHER_WORKER = Worker(Slot("a", 1), 1)
BLOCKS = [number.to_bytes(4, "big") * 1024 for number in range(1024)]  # 4 MB


class Story:
    """A forwarder, and the launcher's end of its pipe."""

    def __init__(self) -> None:
        self.forwarder = OutputForwarder()
        self.launcher, self._writing = os.pipe()
        self.written = 0

    async def open(self) -> OutputForwarder:
        """Begin."""
        await self.forwarder.open(self._writing)
        return self.forwarder

    def add(self, worker: Worker, stream: OutputStream) -> int:
        """Add a stream of the worker; returns the descriptor into which the worker writes."""
        reading, writing = os.pipe()
        self.forwarder.add(worker, stream, reading)
        return writing

    def write(self, worker: Worker, stream: OutputStream, text: bytes) -> None:
        """The worker writes this and ends."""
        writing = self.add(worker, stream)
        os.write(writing, text)
        os.close(writing)

    def write_much(self, descriptor: int) -> None:
        """The worker writes all blocks and ends, in a thread."""
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            for block in BLOCKS:
                self.written += pipe.write(block)

    async def close(self) -> list[AgentMessage]:
        """Close the forwarder, and return all that the launcher has read."""
        reading = asyncio.create_task(asyncio.to_thread(self._read))
        await self.forwarder.drain()
        self.forwarder.close()
        return await reading

    def _read(self) -> list[AgentMessage]:
        with os.fdopen(self.launcher, "rb") as pipe:
            return [codec.decode_agent_message(data) for data in codec.FrameReader().feed(pipe.read())]


def join(messages: list[AgentMessage], worker: Worker, stream: OutputStream) -> bytes:
    pieces = (message for message in messages if isinstance(message, Output))
    return b"".join(piece.data for piece in pieces if (piece.worker, piece.stream) == (worker, stream))


@in_loop
async def test_each_byte_comes_with_its_worker_and_stream() -> None:
    story = Story()
    (await story.open()).tell(Remark("first"))
    sources = [(worker, stream) for worker in (WORKER, OTHER_WORKER) for stream in OutputStream]
    for worker, stream in sources:
        story.write(worker, stream, f"{worker} {stream}\xff".encode("latin-1"))
    messages = await story.close()
    assert messages[0] == Remark("first")
    for worker, stream in sources:
        assert join(messages, worker, stream) == f"{worker} {stream}\xff".encode("latin-1")


@in_loop
async def test_a_forwarder_without_sources_closes_immediately() -> None:
    story = Story()
    await story.open()
    assert await story.close() == []


@in_loop
async def test_a_launcher_that_does_not_read_blocks_the_workers_and_loses_nothing() -> None:
    story = Story()
    forwarder = await story.open()
    thread = threading.Thread(target=story.write_much, args=(story.add(WORKER, OutputStream.STDOUT),))
    thread.start()
    await happen(lambda: not forwarder._flowing.is_set(), "a full pipe")
    story.write(OTHER_WORKER, OutputStream.STDOUT, b"later")  # added while nothing flows
    assert forwarder._transport is not None
    assert forwarder._transport.get_write_buffer_size() < 256 * 1024
    assert story.written < 512 * 1024
    messages = await story.close()
    thread.join()
    assert join(messages, WORKER, OutputStream.STDOUT) == b"".join(BLOCKS)
    assert join(messages, OTHER_WORKER, OutputStream.STDOUT) == b"later"


@in_loop
async def test_output_is_read_after_the_launcher_has_gone() -> None:
    story = Story()
    forwarder = await story.open()
    writing = story.add(WORKER, OutputStream.STDOUT)
    os.close(story.launcher)
    await asyncio.to_thread(story.write_much, writing)  # does not block for ever
    await forwarder.drain()
    forwarder.tell(Remark("it is not heard"))
    assert story.written == len(b"".join(BLOCKS))


@in_loop
async def test_draining_ends_when_the_launcher_closes_its_end() -> None:
    story = Story()
    forwarder = await story.open()
    forwarder.tell(Remark("x" * 1_000_000))  # more than a pipe holds
    closing = asyncio.create_task(forwarder.drain())
    await asyncio.sleep(0)
    assert not closing.done()
    os.close(story.launcher)
    await closing


@in_loop
async def test_closing_waits_for_the_last_writer() -> None:
    story = Story()
    await story.open()
    writing = story.add(WORKER, OutputStream.STDERR)
    closing = asyncio.create_task(story.close())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not closing.done()
    os.write(writing, b"last words")
    os.close(writing)
    assert join(await closing, WORKER, OutputStream.STDERR) == b"last words"


@in_loop
async def test_draining_an_idle_tls_connection_ends() -> None:
    """With a limit of 0 asyncio counts the empty buffer of a TLS connection as full."""
    authority = Authority("test")
    context = make_server_context(authority.issue_server())

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"x")
            await reader.read()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(greet, "127.0.0.1", ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        channel = await dial("127.0.0.1", port, make_client_context(authority.certificate))
        await channel.reader.readexactly(1)  # all that the handshake sends has come
        forwarder = OutputForwarder()
        channel.follow(forwarder)
        forwarder.attach(channel.transport)
        try:
            await asyncio.wait_for(forwarder.drain(), 30)
        finally:
            channel.transport.abort()


class KeptStory(Story):
    """A forwarder that keeps the output in a spool."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.spool = Spool(folder, part_bytes=256 * 1024)
        self.forwarder.keep(self.spool)

    def take(self) -> list[AgentMessage]:
        """What is in the spool."""
        taken: list[AgentMessage] = []
        while self.spool:
            first, messages = self.spool.peek()
            self.spool.drop(first + len(messages) - 1)
            taken += map(codec.decode_agent_message, messages)
        return taken


@in_loop
async def test_a_launcher_that_is_away_blocks_no_worker_and_loses_nothing(tmp_path: Path) -> None:
    story = KeptStory(tmp_path)
    forwarder = await story.open()
    os.close(story.launcher)
    await asyncio.to_thread(story.write_much, story.add(WORKER, OutputStream.STDOUT))
    await forwarder._drained.wait()
    forwarder.tell(Remark("later"))
    *output, last = story.take()
    assert join(output, WORKER, OutputStream.STDOUT) == b"".join(BLOCKS)
    assert last == Remark("later")
    forwarder.close()


@in_loop
async def test_kept_lines_are_whole_where_their_end_comes_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = KeptStory(tmp_path)
    await story.open()
    writing = story.add(WORKER, OutputStream.STDOUT)
    kept: list[AgentMessage] = []

    def has_kept(piece: bytes) -> bool:
        kept[len(kept) :] = story.take()
        return kept[-1:] == [Output(WORKER, OutputStream.STDOUT, piece)]

    async def take(piece: bytes) -> None:
        await happen(lambda: has_kept(piece))

    monkeypatch.setattr("hvdrun.agent.streams._HALF_LINE_SECONDS", 3600.0)
    os.write(writing, b"one\ntw")
    await take(b"one\n")
    os.write(writing, b"o\n")
    await take(b"two\n")
    monkeypatch.setattr("hvdrun.agent.streams._HALF_LINE_SECONDS", 0.01)
    story.forwarder._send_half(0)
    story.forwarder._timers.clear()
    os.write(writing, b"10 %")
    await take(b"10 %")
    os.write(writing, b"end")
    os.close(writing)
    await take(b"end")
    story.forwarder.close()
    os.close(story.launcher)


@in_loop
async def test_remarks_go_to_the_pipe_until_the_launcher_takes_the_spool(tmp_path: Path) -> None:
    story = KeptStory(tmp_path)
    forwarder = await story.open()
    forwarder.tell(Remark("by the pipe"))
    forwarder.stream()
    forwarder.tell(Remark("by the stream"))
    assert story.take() == [Remark("by the stream")]
    forwarder.tell(AgentFailed("nobody would take it from the spool"))
    forwarder.delivered.set()
    assert await story.close() == [Remark("by the pipe"), AgentFailed("nobody would take it from the spool")]


class InputStory:
    """A feed, the pipe to a worker, and how often the feed has asked for a piece."""

    def __init__(self) -> None:
        self.asked = 0
        self.feed = InputFeed(self._ask)
        self.reader, self.writer = os.pipe()

    def read(self) -> bytes:
        """All that the worker gets, to the end."""
        with os.fdopen(self.reader, "rb") as pipe:
            return pipe.read()

    def _ask(self) -> None:
        self.asked += 1


@in_loop
async def test_pieces_arrive_in_order_and_an_empty_one_is_the_end() -> None:
    story = InputStory()
    await story.feed.open(story.writer)
    for count, piece in enumerate([b"first\n", b"\xff\x00second", b""], 1):
        await happen(lambda count=count: story.asked == count)  # type: ignore[misc]  # mypy sees no default there
        story.feed.write(piece)
    assert await asyncio.to_thread(story.read) == b"first\n\xff\x00second"
    assert story.asked == 3


@in_loop
async def test_the_next_piece_is_requested_only_when_the_worker_has_taken_the_last() -> None:
    story = InputStory()
    await story.feed.open(story.writer)
    large = b"x" * 1_000_000  # more than a pipe holds
    story.feed.write(large)
    await asyncio.sleep(0)
    assert story.asked == 1
    reading = asyncio.create_task(asyncio.to_thread(story.read))
    await happen(lambda: story.asked == 2)
    story.feed.write(b"")
    assert await reading == large


@in_loop
async def test_a_worker_that_has_closed_its_input_gets_no_more_input(caplog: pytest.LogCaptureFixture) -> None:
    story = InputStory()
    await story.feed.open(story.writer)
    os.close(story.reader)
    story.feed.write(b"this is not read")
    await happen(lambda: str(story.writer) not in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all it needs
    asked = story.asked
    for _ in range(10):  # asyncio would log a warning from the fifth write into a closed pipe on
        story.feed.write(b"nor this")
    story.feed.write(b"")
    story.feed.close()
    assert (story.asked, caplog.messages) == (asked, [])


@in_loop
async def test_input_before_there_is_a_worker_is_dropped() -> None:
    story = InputStory()
    story.feed.write(b"too early")
    await story.feed.open(story.writer)
    story.feed.write(b"in time")
    story.feed.write(b"")
    assert await asyncio.to_thread(story.read) == b"in time"


@in_loop
async def test_output_of_a_task_is_forwarded_before_its_outcome_and_other_output_is_not() -> None:
    story = Story()
    forwarder = await story.open()
    out, err, other = (
        story.add(WORKER, OutputStream.STDOUT),
        story.add(WORKER, OutputStream.STDERR),
        story.add(OTHER_WORKER, OutputStream.STDOUT),
    )
    for descriptor in (out, err, other):
        os.write(descriptor, b"x")
    forwarder.note_outcome(WORKER, 7)  # before the loop has had a turn to read
    for descriptor in (out, err, other):
        os.close(descriptor)
    assert await story.close() == [
        Output(WORKER, OutputStream.STDOUT, b"x"),
        Output(WORKER, OutputStream.STDERR, b"x"),
        Written(WORKER, 7),
        Output(OTHER_WORKER, OutputStream.STDOUT, b"x"),
    ]
