"""The workers' output on its way to the launcher: all of it, and never more in memory than the launcher is behind."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hvdrun.agent.output import OutputForwarder
from rendezvous import wire
from rendezvous.core.model import Slot, Worker
from rendezvous.orders import Output, OutputStream, Remark, Telling

WORKER = Worker(Slot("a", 0), 1)
OTHER = Worker(Slot("a", 1), 1)
LIMIT_SECONDS = 10.0
MANY = 4 * 1024 * 1024


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[OutputForwarder, int]]:
    """A forwarder, and where the launcher reads."""
    reading, writing = os.pipe()
    forwarder = OutputForwarder()
    await forwarder.open(writing)
    async with asyncio.timeout(LIMIT_SECONDS):
        yield forwarder, reading


def add(forwarder: OutputForwarder, worker: Worker, stream: OutputStream) -> int:
    """Where the worker writes."""
    reading, writing = os.pipe()
    forwarder.add(worker, stream, reading)
    return writing


def read_all(descriptor: int) -> list[Telling]:
    frames = wire.FrameReader()
    with os.fdopen(descriptor, "rb") as pipe:
        return [wire.decode_telling(data) for data in frames.feed(pipe.read())]


def join(tellings: list[Telling], worker: Worker, stream: OutputStream) -> bytes:
    pieces = (telling for telling in tellings if isinstance(telling, Output))
    return b"".join(piece.data for piece in pieces if (piece.worker, piece.stream) == (worker, stream))


def test_each_byte_comes_with_its_worker_and_stream() -> None:
    async def scenario() -> list[Telling]:
        async with forwarding() as (forwarder, launcher):
            forwarder.tell(Remark("first"))
            for worker in (WORKER, OTHER):
                for stream in OutputStream:
                    writing = add(forwarder, worker, stream)
                    os.write(writing, f"{worker} {stream}\xff".encode("latin-1"))
                    os.close(writing)
            reading = asyncio.create_task(asyncio.to_thread(read_all, launcher))
            await forwarder.close()
            return await reading

    tellings = asyncio.run(scenario())
    assert tellings[0] == Remark("first")
    for worker in (WORKER, OTHER):
        for stream in OutputStream:
            assert join(tellings, worker, stream) == f"{worker} {stream}\xff".encode("latin-1")


def test_a_forwarder_of_nothing_closes_at_once() -> None:
    async def scenario() -> list[Telling]:
        async with forwarding() as (forwarder, launcher):
            await forwarder.close()
            return await asyncio.to_thread(read_all, launcher)

    assert asyncio.run(scenario()) == []


def test_a_launcher_that_does_not_read_blocks_the_workers_and_loses_nothing() -> None:
    written = 0

    def write(descriptor: int) -> None:
        nonlocal written
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            for number in range(MANY // 4096):
                written += pipe.write(number.to_bytes(4, "big") * 1024)

    async def scenario() -> tuple[int, int, list[Telling]]:
        async with forwarding() as (forwarder, launcher):
            thread = threading.Thread(target=write, args=(add(forwarder, WORKER, OutputStream.STDOUT),))
            thread.start()
            while forwarder._flowing.is_set():  # noqa: ASYNC110 - there is no event for a full pipe
                await asyncio.sleep(0.001)
            later = add(forwarder, OTHER, OutputStream.STDOUT)  # added while nothing flows
            os.write(later, b"later")
            os.close(later)
            assert forwarder._transport is not None
            kept, before = forwarder._transport.get_write_buffer_size(), written
            reading = asyncio.create_task(asyncio.to_thread(read_all, launcher))
            await forwarder.close()
            thread.join()
            return kept, before, await reading

    kept, before, tellings = asyncio.run(scenario())
    assert kept < 256 * 1024
    assert before < 512 * 1024
    shown = join(tellings, WORKER, OutputStream.STDOUT)
    assert shown == b"".join(number.to_bytes(4, "big") * 1024 for number in range(MANY // 4096))
    assert join(tellings, OTHER, OutputStream.STDOUT) == b"later"


def test_when_the_launcher_has_gone_the_workers_are_read_on() -> None:
    def write(descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            pipe.write(b"x" * MANY)

    async def scenario() -> None:
        async with forwarding() as (forwarder, launcher):
            writing = add(forwarder, WORKER, OutputStream.STDOUT)
            os.close(launcher)
            await asyncio.to_thread(write, writing)  # does not block for ever
            await forwarder.close()
            forwarder.tell(Remark("nobody hears it"))

    asyncio.run(scenario())


def test_closing_waits_for_the_last_writer() -> None:
    async def scenario() -> list[Telling]:
        async with forwarding() as (forwarder, launcher):
            writing = add(forwarder, WORKER, OutputStream.STDERR)
            closing = asyncio.create_task(forwarder.close())
            await asyncio.sleep(0)
            assert not closing.done()
            os.write(writing, b"last words")
            os.close(writing)
            reading = asyncio.create_task(asyncio.to_thread(read_all, launcher))
            await closing
            return await reading

    assert join(asyncio.run(scenario()), WORKER, OutputStream.STDERR) == b"last words"
