"""The thread that writes: order, back-pressure, readers that pause or go, and an end that does not wait for ever."""

import asyncio
import errno
import fcntl
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from hvdrun.console.writer import Writer
from tests.hvdrun.console.screens import Screen
from tests.waiting import LIMIT_SECONDS, happen, in_loop


def count_eventfds() -> int:
    return sum("eventfd" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


def test_data_is_written_in_order_to_each_descriptor(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    descriptors = [os.open(path, os.O_WRONLY | os.O_CREAT) for path in paths]
    writer = Writer()
    for number in range(5000):
        assert writer.put(descriptors[number % 2], b"%d\n" % number)
    assert writer.end(LIMIT_SECONDS)
    for parity, path in enumerate(paths):
        assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(parity, 5000, 2))
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_writer_that_wrote_nothing_has_no_thread_to_end() -> None:
    before = threading.active_count()
    writer = Writer()
    writer.put(1, b"")
    assert threading.active_count() == before
    assert writer.end(LIMIT_SECONDS)


def test_the_thread_and_its_descriptor_are_gone_after_the_end(pipe: Screen) -> None:
    threads, eventfds = threading.active_count(), count_eventfds()
    writer = Writer()
    writer.put(pipe.writing, b"x")
    assert writer.end(LIMIT_SECONDS)
    assert writer.end(LIMIT_SECONDS)
    assert threading.active_count() == threads
    assert count_eventfds() == eventfds


def test_after_the_end_nothing_is_taken(pipe: Screen) -> None:
    writer = Writer()
    writer.end(LIMIT_SECONDS)
    assert not writer.put(pipe.writing, b"x")


def test_a_writer_is_behind_until_all_is_written(pipe: Screen) -> None:
    writer = Writer()
    seen = [writer.is_behind]
    writer.put(pipe.writing, b"x" * 1_000_000)
    seen.append(writer.is_behind)
    pipe.reader.read(1_000_000)
    writer.end(LIMIT_SECONDS)
    seen.append(writer.is_behind)
    assert seen == [False, True, False]


@in_loop
async def test_drain_waits_for_a_reader_that_is_behind_while_the_loop_continues(pipe: Screen) -> None:
    writer = Writer(capacity_bytes=1000)
    writer.put(pipe.writing, b"x" * 1_000_000)
    draining = asyncio.create_task(writer.drain())
    done, _ = await asyncio.wait({draining}, timeout=0.1)
    assert not done
    assert await asyncio.to_thread(pipe.reader.read, 999_900) == b"x" * 999_900
    async with asyncio.timeout(LIMIT_SECONDS):
        await draining
    assert await writer.close(LIMIT_SECONDS)


@in_loop
async def test_a_cancelled_drain_stops_waiting_for_a_full_queue(pipe: Screen) -> None:
    writer = Writer(capacity_bytes=10)
    writer.put(pipe.writing, b"x" * 1_000_000)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.drain(), 0.05)
    assert not await writer.close(0.05)


def test_a_reader_that_pauses_does_not_hold_up_the_end(pipe: Screen, tmp_path: Path) -> None:
    before = threading.active_count()
    writer = Writer()
    with (tmp_path / "written").open("wb") as written, (tmp_path / "behind").open("wb") as behind:
        for file, data in ((written.fileno(), b"x"), (pipe.writing, b"x" * 1_000_000), (behind.fileno(), b"x")):
            writer.put(file, data)
        assert not writer.end(0.05)
        losses = [writer.find_loss(file) for file in (written.fileno(), pipe.writing, behind.fileno())]
    assert [error and error.strerror for error in losses] == [
        None,
        "the wait for a reader that pauses was cut short",
        None,
    ]
    assert (tmp_path / "behind").read_bytes() == b"x"
    assert threading.active_count() == before


@in_loop
async def test_a_close_without_limit_waits_for_the_reader_until_a_later_close_sets_a_limit(pipe: Screen) -> None:
    writer = Writer()
    writer.put(pipe.writing, b"x" * 1_000_000)
    patient = asyncio.create_task(writer.close(None))
    done, _ = await asyncio.wait({patient}, timeout=0.1)
    assert not done
    assert not writer.end(0)
    async with asyncio.timeout(LIMIT_SECONDS):
        assert not await patient


@in_loop
async def test_a_reader_that_closes_its_end_ends_the_wait_for_it(pipe: Screen) -> None:
    writer = Writer(capacity_bytes=10)
    writer.put(pipe.writing, b"x" * 1_000_000)
    draining = asyncio.create_task(writer.drain())
    await asyncio.sleep(0)
    pipe.reader.close()
    async with asyncio.timeout(LIMIT_SECONDS):
        await draining
    assert isinstance(writer.find_failure(pipe.writing), BrokenPipeError)
    assert not await writer.close(LIMIT_SECONDS)


def test_one_reader_that_has_gone_does_not_stop_the_other(pipe: Screen) -> None:
    reading, writing = os.pipe()
    pipe.reader.close()
    writer = Writer()
    writer.put(pipe.writing, b"lost")
    writer.put(writing, b"kept")
    assert not writer.end(LIMIT_SECONDS)
    os.close(writing)
    assert os.read(reading, 100) == b"kept"
    os.close(reading)


class FullDisk:
    """Has no room for what a writer writes, until it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_room = False
        self.room = 0  # in bytes
        self.tries = 0
        self._write = os.write
        monkeypatch.setattr(os, "write", self._try)

    def _try(self, descriptor: int, data: bytes) -> int:
        self.tries += 1
        if not (self.has_room or self.room):
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(descriptor, data if self.has_room else data[: self.room])
        self.room = max(0, self.room - written)
        return written


@in_loop
async def test_a_full_disk_is_reported_and_loses_nothing_when_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch, pipe: Screen
) -> None:
    disk, writer, reported = FullDisk(monkeypatch), Writer(full_seconds=LIMIT_SECONDS), list[int | None]()
    for count in (1, 2):
        disk.has_room = False
        writer.put(pipe.writing, b"x")
        await happen(lambda: disk.tries > 2)  # also without a listener
        writer.call_when_failing(lambda _, error: reported.append(error.errno), lambda error: pytest.fail(str(error)))
        await happen(lambda count=count: len(reported) >= count)  # type: ignore[misc]  # mypy sees no default there
        disk.has_room = True
        await happen(lambda: not writer.is_behind)
    assert await writer.close(LIMIT_SECONDS)
    assert (reported, writer.find_loss(pipe.writing), pipe.read()) == ([errno.ENOSPC] * 2, None, "xx")


@in_loop
async def test_output_for_a_full_disk_is_lost_and_later_output_is_written(
    monkeypatch: pytest.MonkeyPatch, pipe: Screen
) -> None:
    disk, writer = FullDisk(monkeypatch), Writer(full_seconds=0)
    writer.put(pipe.writing, b"lost")
    await happen(lambda: writer.find_loss(pipe.writing) is not None and not writer.is_behind)
    disk.has_room = True
    writer.put(pipe.writing, b"kept")
    assert not await writer.close(LIMIT_SECONDS)
    assert pipe.read() == "kept"


@in_loop
async def test_an_end_that_does_not_wait_for_a_full_disk_notes_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, pipe: Screen
) -> None:
    disk, writer, errors = FullDisk(monkeypatch), Writer(full_seconds=LIMIT_SECONDS), list[OSError | None]()
    released = os.dup(pipe.writing)
    writer.put(pipe.writing, b"lost")
    await happen(lambda: disk.tries > 1)
    writer.put(released, b"lost behind it")
    writer.release(released, errors.append)
    writer.call_when_written(lambda: setattr(disk, "has_room", True))
    writer.put(pipe.writing, b"kept")
    assert not await writer.close(0)
    losses = [writer.find_loss(pipe.writing), *errors]
    assert [error and error.strerror for error in losses] == ["No space left on device"] * 2
    assert pipe.read() == "kept"


@in_loop
async def test_a_part_of_a_line_is_followed_by_a_new_line(monkeypatch: pytest.MonkeyPatch, pipe: Screen) -> None:
    disk, writer = FullDisk(monkeypatch), Writer(full_seconds=0)
    for data, room in ((b"one\ntwo\n", 6), (b"three\n", 0), (b"four\nfive\n", 6)):
        disk.room = room
        writer.put(pipe.writing, data)
        await happen(lambda: not writer.is_behind)
    disk.has_room = True
    writer.put(pipe.writing, b"six\n")
    await writer.close(LIMIT_SECONDS)
    assert pipe.read() == "one\ntw\nfour\nsix\n"


def test_a_late_caller_still_learns_that_the_reader_has_gone() -> None:
    async def write(writing: int) -> OSError:
        writer = Writer()
        writer.put(writing, b"x")
        await writer.close(LIMIT_SECONDS)
        heard: asyncio.Future[OSError] = asyncio.Future()
        writer.call_when_failing(lambda _, error: heard.set_result(error), heard.set_exception)
        async with asyncio.timeout(LIMIT_SECONDS):
            return await heard

    reading, writing = os.pipe()
    os.close(reading)
    assert isinstance(asyncio.run(write(writing)), BrokenPipeError)
    os.close(writing)


def test_a_descriptor_that_was_made_non_blocking_loses_nothing(pipe: Screen) -> None:
    fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(pipe.writing, False)
    data = bytes(range(256)) * 1000
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.reader.read()))
    reader.start()
    writer = Writer()
    writer.put(pipe.writing, data)
    assert writer.end(LIMIT_SECONDS)
    pipe.writer.close()
    reader.join(LIMIT_SECONDS)
    assert received == [data]


@in_loop
@pytest.mark.parametrize("is_late", [False, True])
async def test_an_unexpected_error_is_reported_and_raised_and_nothing_is_taken_any_more(
    pipe: Screen, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Writer, "_write", fail)
    writer, reported = Writer(), asyncio.get_running_loop().create_future()
    for step in (1, 2) if is_late else (2, 1):
        if step == 1:
            writer.put(pipe.writing, b"x")
            await happen(lambda: not writer.put(pipe.writing, b""))
        else:
            writer.call_when_failing(lambda *failure: pytest.fail(str(failure)), reported.set_result)
    async with asyncio.timeout(LIMIT_SECONDS):
        assert isinstance(await reported, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            await writer.close(LIMIT_SECONDS)


def test_a_descriptor_is_closed_when_all_is_written_and_its_error_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "one"
    good, full = os.open(path, os.O_WRONLY | os.O_CREAT), os.open("/dev/full", os.O_WRONLY)
    errors: dict[int, OSError | None] = {}
    writer = Writer(full_seconds=0.0)
    for descriptor in (good, full):
        writer.put(descriptor, b"text")
        writer.release(descriptor, partial(errors.__setitem__, descriptor))
    writer.end(LIMIT_SECONDS)
    assert (path.read_bytes(), errors[good]) == (b"text", None)
    assert getattr(errors[full], "errno", None) == errno.ENOSPC
    for descriptor in (good, full):
        assert writer.find_loss(descriptor) is None  # another file may have its number
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_without_anything_to_write_a_descriptor_is_closed_immediately(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "one", os.O_WRONLY | os.O_CREAT)
    Writer().release(descriptor, lambda _: None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_call_comes_when_all_before_it_is_written(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        writer = Writer()
        sizes: list[int] = []
        for data in (b"one\n", b"two\n"):
            writer.put(file.fileno(), data)
            writer.call_when_written(lambda: sizes.append((tmp_path / "log").stat().st_size))
        assert writer.end(60)
        writer.call_when_written(lambda: sizes.append(-1))
    assert sizes == [4, 8, -1]
