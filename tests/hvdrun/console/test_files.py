"""--output-filename: which line lands in which file."""

import asyncio
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvdrun.console.files import OutputFiles
from hvdrun.console.marks import Marks, OutputMarker
from hvdrun.console.output import OutputPrinter
from hvdrun.console.writer import Writer
from hvdrun.errors import LaunchError
from rendezvous.core.messages import Launch
from rendezvous.core.model import Assignment, Round, Slot, Worker
from rendezvous.wire.orders import OutputStream
from tests.descriptors import list_open_files
from tests.hvdrun.console.screens import Screen, at
from tests.waiting import happen, in_loop

STDOUT, STDERR = OutputStream.STDOUT, OutputStream.STDERR


def read(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("std*") if path.stat().st_size}


@pytest.mark.parametrize(("size", "first"), [(1, "rank.0"), (10, "rank.0"), (11, "rank.00"), (101, "rank.000")])
def test_ranks_have_as_many_digits_as_the_last_one(tmp_path: Path, size: int, first: str) -> None:
    OutputFiles(tmp_path / "a" / "logs", size, Marks()).create(1)
    assert {str(path.relative_to(tmp_path / "a" / "logs")) for path in tmp_path.rglob("std*")} == {
        f"{first}/stdout",
        f"{first}/stderr",
    }


@in_loop
async def test_each_line_lands_in_the_file_of_its_rank_and_stream_with_its_mark(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").write_text("of a job before\n")
    files = OutputFiles(tmp_path, 2, Marks(horovod=True))
    files.create(2)
    await files.write(at(0), 0, STDOUT, b"one\r\ntw")
    await files.write(at(0), 0, STDERR, b"\xff\n")
    await files.write(at(1), 1, STDOUT, b"x\n")
    await files.write(at(0), 0, STDOUT, b"o")
    files.finish(at(0))
    assert await files.close(60)
    assert (tmp_path / "rank.0" / "stderr").read_bytes() == b"[0]<stderr>:\xff\n"
    (tmp_path / "rank.0" / "stderr").unlink()
    assert read(tmp_path) == {
        "rank.0/stdout": "[0]<stdout>:one\n[0]<stdout>:two\n",
        "rank.1/stdout": "[1]<stdout>:x\n",
    }
    assert list(files.list_lost()) == []


@in_loop
async def test_a_worker_whose_rank_changes_continues_in_a_file_of_its_own_at_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "rank.12").mkdir()
    (tmp_path / "rank.12" / "stderr").write_text("of a job before\n")
    files = OutputFiles(tmp_path, 2, Marks())
    files.create(2)
    await files.write(at(0), 0, STDOUT, b"of another\n")
    await files.write(at(1), 1, STDOUT, b"before\nhal")
    files.finish(at(0))
    await files.write(at(1), 0, STDOUT, b"f\n")
    files.forget(at(0))
    await files.write(at(1), 1, STDOUT, b"after\n")
    await files.write(at(7), 12, STDERR, b"new\n")
    assert await files.close(60)
    assert read(tmp_path) == {
        "rank.0/stdout": "[0] of another\n",
        "rank.0/stdout.1": "[0] half\n",
        "rank.1/stdout": "[1] before\n[1] after\n",
        "rank.12/stderr": "[12] new\n",
    }


@in_loop
async def test_a_change_of_ranks_is_in_the_index_before_a_worker_writes(tmp_path: Path) -> None:
    times = (datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(60))
    files = OutputFiles(tmp_path, 2, Marks(), clock=lambda: next(times))
    for slot in range(2):
        files.note_launch(Launch(at(slot), Assignment(slot, 2, slot, 2, 0, 1), "placed"))
    files.note_end(at(0), 1)
    files.note_ranks([at(1)])
    assert await files.close(60)
    index = json.loads((tmp_path / "index.json").read_text())["files"]
    assert [(each["rank"], each["slot"], each["begin"][17:19], (each["end"] or "")[17:19]) for each in index] == [
        (0, 0, "00", "02"),
        (1, 1, "01", "03"),
        (0, 1, "03", ""),
    ]


@in_loop
async def test_the_printer_copies_all_its_input(tmp_path: Path, pipe: Screen) -> None:
    files = OutputFiles(tmp_path, 1, Marks())
    printer = OutputPrinter(OutputMarker(Marks()), Writer(), dict.fromkeys(OutputStream, pipe.writing))
    printer.copy_to(files)
    await printer.write(at(0), 0, STDOUT, b"x")
    printer.forget(at(0))
    assert await printer.close(60)
    assert read(tmp_path) == {"rank.0/stdout": "[0] x\n"}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"rank.0/stdout' of --output-filename cannot be created: Not a directory"):
        OutputFiles(tmp_path / "file", 1, Marks()).create(1)


@in_loop
async def test_a_file_that_loses_lines_is_listed(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, 2, Marks())
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    (tmp_path / "rank.1").touch()
    await files.write(at(0), 0, STDOUT, b"x\n")
    await files.write(at(1), 1, STDOUT, b"x\n")
    await files.close(60)
    assert [(path.parent.name, error.strerror) for path, error in files.list_lost()] == [
        ("rank.1", "File exists"),
        ("rank.0", "No space left on device"),
    ]


@in_loop
async def test_a_file_that_waits_for_a_full_disk_at_the_end_is_listed(tmp_path: Path) -> None:
    files, tried = OutputFiles(tmp_path, 2, Marks()), asyncio.Event()
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    files.call_when_failing(lambda *_: tried.set(), lambda error: pytest.fail(str(error)))
    for rank in (0, 1):
        files.note_launch(Launch(at(rank), Assignment(rank, 2, rank, 2, 0, 1), "placed"))
        await files.write(at(rank), rank, STDOUT, b"x\n")
    async with asyncio.timeout(60):
        await tried.wait()
    files.note_end(at(1), 0)
    await files.close(0)
    assert [(path.parent.name, error.strerror) for path, error in files.list_lost()] == [
        ("rank.0", "No space left on device")
    ]
    assert (tmp_path / "rank.1" / "stdout").read_text() == "[1] x\n"
    assert len(json.loads((tmp_path / "index.json").read_text())["files"]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a link of another user")
@pytest.mark.parametrize("planted", ["out", "out/rank.0", "out/rank.0/stdout"])
def test_a_link_of_another_user_is_not_followed(tmp_path: Path, planted: str) -> None:
    (tmp_path / "mine" / "rank.0").mkdir(parents=True)
    (tmp_path / "mine" / "rank.0" / "stdout").write_text("precious")
    link = tmp_path / planted
    link.parent.mkdir(parents=True, exist_ok=True)
    target = tmp_path / "mine" / link.relative_to(tmp_path / "out")
    link.symlink_to(target)
    os.lchown(link, 65534, 65534)
    with pytest.raises(LaunchError, match="is a link of another user; name another folder"):
        OutputFiles(tmp_path / "out", 1, Marks(ranks=False)).create(1)
    assert (tmp_path / "mine" / "rank.0" / "stdout").read_text() == "precious"
    os.lchown(link, 0, 0)
    OutputFiles(tmp_path / "out", 1, Marks(ranks=False)).create(1)  # a link of this user is what it is for


def test_a_fifo_in_the_place_of_a_rank_s_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    os.mkfifo(tmp_path / "rank.0" / "stdout")
    with pytest.raises(LaunchError, match="cannot be created"):
        OutputFiles(tmp_path, 1, Marks(ranks=False)).create(1)


def launch(slot: int, number: int) -> Launch:
    """The start of this slot's worker in a round of two."""
    worker = Worker(Slot("a", slot), number + 1)
    return Launch(worker, Assignment(slot, 2, slot, 2, 0, 1), "started again", round=Round(number, 0, 1))


@in_loop
async def test_each_round_has_files_of_its_own_and_those_of_ended_workers_are_closed(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, 2, Marks())
    files.create(2)
    for number in range(4):
        orders = [launch(slot, number) for slot in range(2)]
        for order in orders:
            files.note_launch(order)
        for order in orders:
            await files.write(order.worker, order.assignment.rank, STDOUT, b"in %d\n" % number)
        for order in orders:
            files.note_end(order.worker, 1)
    await happen(lambda: not list_open_files(tmp_path), "the close of all files")
    late = launch(1, 2).worker
    await files.write(late, 1, STDOUT, b"late\n")
    assert await files.close(60)
    expected = {f"rank.0/stdout{name}": f"[0] in {number}\n" for number, name in enumerate(["", ".1", ".2", ".3"])}
    expected |= {f"rank.1/stdout{name}": f"[1] in {number}\n" for number, name in enumerate(["", ".1", ".2", ".3"])}
    expected["rank.1/stdout.2"] += "[1] late\n"
    assert read(tmp_path) == expected
    assert list(files.list_lost()) == []


class Clock:
    """Local time; each look is a second later."""

    def __init__(self) -> None:
        self._seconds = -1

    def __call__(self) -> datetime:
        """The next second."""
        self._seconds += 1
        return datetime(2026, 1, 31, 12, 0, self._seconds, tzinfo=UTC)


def read_index(folder: Path) -> list[dict[str, object]]:
    """The rows of the index; no file of its making is left."""
    assert [path.name for path in folder.glob("index*")] == ["index.json"]
    text = json.loads((folder / "index.json").read_text())
    assert text["job"] == "a1b2"
    rows: list[dict[str, object]] = text["files"]
    return rows


@in_loop
async def test_the_index_shows_which_worker_has_written_which_files(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("of a job before")
    files = OutputFiles(tmp_path, 2, Marks(), "a1b2", clock=Clock())
    files.create(2)
    assert not (tmp_path / "index.json").exists()
    for slot in range(2):
        files.note_launch(launch(slot, 0))
    await happen((tmp_path / "index.json").exists, "the index is there while the job runs")
    files.note_end(at(0), -37)
    files.note_end(at(0), 0)
    await files.write(at(1), 0, STDOUT, b"has the other rank now\n")
    files.note_launch(Launch(Worker(Slot("a", 0), 2), Assignment(1, 2, 1, 2, 0, 1), "in place of a:0"))
    files.note_end(Worker(Slot("a", 0), 2), 3)
    assert await files.close(60)
    first, second, third, fourth = read_index(tmp_path)
    assert first == {
        "rank": 0,
        "stdout": "rank.0/stdout",
        "stderr": "rank.0/stderr",
        "host": "a",
        "slot": 0,
        "incarnation": 1,
        "round": 0,
        "begin": "2026-01-31T12:00:00.000+00:00",
        "end": "2026-01-31T12:00:02.000+00:00",
        "exit_code": None,
        "signal": "SIGRTMIN+3",
    }
    parts = ("stdout", "slot", "incarnation", "end", "exit_code")
    assert [tuple(entry[part] for part in parts) for entry in (second, third, fourth)] == [
        ("rank.1/stdout", 1, 1, "2026-01-31T12:00:04.000+00:00", None),
        ("rank.0/stdout.1", 1, 1, None, None),
        ("rank.1/stdout.1", 0, 2, "2026-01-31T12:00:06.000+00:00", 3),
    ]


@in_loop
async def test_late_output_at_another_rank_has_the_exit_code_of_the_ended_worker(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, 2, Marks(), "a1b2", clock=Clock())
    files.note_launch(launch(0, 0))
    files.note_end(at(0), 5)
    await files.write(at(0), 1, STDOUT, b"late\n")
    assert await files.close(60)
    assert [(entry["rank"], entry["exit_code"]) for entry in read_index(tmp_path)] == [(0, None), (1, 5)]


@in_loop
async def test_the_workers_of_a_lost_host_have_ended_with_an_unknown_code(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, 2, Marks(), "a1b2")
    for slot in range(2):
        files.note_launch(launch(slot, 0))
    files.note_end(at(0), 0)
    files.note_lost_host("a")
    assert await files.close(60)
    assert [(entry["exit_code"], entry["end"] is None) for entry in read_index(tmp_path)] == [(0, False), (None, False)]


@in_loop
async def test_the_index_replaces_what_a_killed_launcher_has_not_completed(tmp_path: Path) -> None:
    (tmp_path / f"index.json.{os.getpid()}.0").write_text("[")
    files = OutputFiles(tmp_path, 1, Marks(), "a1b2")
    files.note_launch(launch(0, 0))
    assert await files.close(60)
    assert [entry["rank"] for entry in read_index(tmp_path)] == [0]


@in_loop
async def test_an_index_that_cannot_be_written_is_listed_as_lost(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, 1, Marks())
    files.create(1)
    (tmp_path / "index.json").mkdir()
    files.note_launch(launch(0, 0))
    assert await files.close(60)
    assert [(path.name, error.strerror) for path, error in files.list_lost()] == [("index.json", "Is a directory")]


def test_an_index_that_cannot_be_replaced_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    with pytest.raises(LaunchError, match=r"index.json' of --output-filename cannot be created: Is a directory"):
        OutputFiles(tmp_path, 1, Marks()).create(1)


@in_loop
async def test_another_server_knows_the_round_of_a_worker_that_is_started_alone(tmp_path: Path) -> None:
    first = OutputFiles(tmp_path, 2, Marks(), "a1b2")
    numbers = Assignment(0, 2, 0, 2, 0, 1)
    first.note_launch(Launch(Worker(Slot("a", 0), 2), numbers, "again", round=Round(1, 0, 2)))
    assert await first.close(60)
    second = OutputFiles(tmp_path, 2, Marks(), "a1b2", index=first.index)
    second.note_launch(Launch(Worker(Slot("a", 1), 2), replace(numbers, rank=1), "a worker was lost"))
    assert await second.close(60)
    assert [row["round"] for row in read_index(tmp_path)] == [1, 1]
