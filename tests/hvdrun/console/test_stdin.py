"""Reading hvdrun's own standard input, a piece at a time and only when asked."""

import asyncio
import os
from pathlib import Path

from hvdrun.console.stdin import StdinReader
from tests.waiting import LIMIT_SECONDS, in_loop


async def read_pieces(descriptor: int) -> list[bytes]:
    """Every piece up to the end, asking for the next one after each."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    reader = StdinReader(pieces.put_nowait, descriptor)
    found: list[bytes] = []
    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(reader.run())
        while not found or found[-1]:
            reader.ask()
            found.append(await pieces.get())
    return found


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    (tmp_path / "input").write_bytes(data)
    descriptor = os.open(tmp_path / "input", os.O_RDONLY)
    try:
        pieces = asyncio.run(read_pieces(descriptor))
    finally:
        os.close(descriptor)
    assert b"".join(pieces) == data
    assert pieces[-1] == b""


def test_a_closed_descriptor_is_the_end_of_input() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    os.close(reader)
    assert asyncio.run(read_pieces(reader)) == [b""]


@in_loop
async def test_input_is_read_only_on_request() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"still here")
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    stdin = asyncio.create_task(StdinReader(pieces.put_nowait, reader).run())
    await asyncio.sleep(0)
    stdin.cancel()
    left = os.read(reader, 100)
    os.close(reader)
    os.close(writer)
    assert pieces.empty()
    assert left == b"still here"
