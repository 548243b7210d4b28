"""A journal with a fault is refused in one sentence; one that a power cut has ended lacks only what was not durable."""

import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rendezvous.journal import sqlite
from rendezvous.journal.errors import JournalDamagedError, JournalInUseError, JournalTooNewError
from rendezvous.journal.records import Record
from rendezvous.journal.sqlite import open_journal
from rendezvous.journal.write_ahead_log import has_lost_commits
from tests.rendezvous.journal.reading import matches, opened, write
from tests.rendezvous.journal.states import join_all, place_workers

STATES = join_all(place_workers(12))
LOG = "journal.db-wal"


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """The folder of a journal whose server was killed after it had written all states, each by itself."""
    with opened(tmp_path / "whole") as journal:
        write(journal, *STATES)
        shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    return tmp_path / "cut"


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The folder of a journal that was closed."""
    with opened(tmp_path / "closed") as journal:
        write(journal, *STATES)
        journal.put("secret", b"a secret")
    return tmp_path / "closed"


def flip(path: Path, place: int) -> None:
    """Change one bit of the byte at this place."""
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def read_place(folder: Path) -> int:
    """How many of the states the journal has."""
    with opened(folder) as journal:
        state = journal.read()
    if state is None:
        return 0
    return next(number for number, written in enumerate(STATES, 1) if matches(state, written))


def change(folder: Path, statement: str, *values: object) -> None:
    """Write to a closed journal as another program may do."""
    with closing(sqlite3.connect(folder / "journal.db")) as connection, connection:
        connection.execute(statement, values)


def test_a_log_that_was_cut_anywhere_lacks_only_its_last_states(cut: Path, tmp_path: Path) -> None:
    log = (cut / LOG).read_bytes()
    places = []
    for number, length in enumerate([*range(0, len(log), len(log) // 40), len(log)]):
        folder = tmp_path / str(number)
        shutil.copytree(cut, folder)
        (folder / LOG).write_bytes(log[:length])
        places.append(read_place(folder))
    assert places == sorted(places)
    assert set(places) == {*range(len(STATES) + 1)}
    assert read_place(cut) == len(STATES)


def test_a_fault_in_the_last_frame_of_a_log_is_like_a_write_that_was_cut(cut: Path) -> None:
    flip(cut / LOG, -100)
    assert read_place(cut) == len(STATES) - 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.6])
def test_a_fault_in_the_middle_of_a_log_is_refused_and_stays(cut: Path, share: float) -> None:
    flip(cut / LOG, int(share * (cut / LOG).stat().st_size) + 16)
    known = (cut / LOG).read_bytes()
    for _ in range(2):
        with pytest.raises(JournalDamagedError, match="commits are missing in the middle of its write-ahead log"):
            open_journal(cut, pytest.fail)
        assert (cut / LOG).read_bytes() == known


def test_a_log_in_the_making_belongs_to_the_server_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        write(journal, *STATES)
        monkeypatch.setattr(sqlite, "has_lost_commits", lambda _: True)
        with pytest.raises(JournalInUseError):
            open_journal(tmp_path, pytest.fail)


def test_a_log_of_another_form_has_lost_no_commits_that_it_had() -> None:
    assert not has_lost_commits(b"")
    assert not has_lost_commits(bytes(40))
    assert has_lost_commits(bytes(5000))


@pytest.mark.parametrize("seed", range(40))
def test_a_fault_anywhere_in_the_file_is_refused_or_without_effect(closed: Path, seed: int) -> None:
    size = (closed / "journal.db").stat().st_size
    flip(closed / "journal.db", random.Random(seed).randrange(size))  # noqa: S311 - a seed that can be repeated
    with suppress(JournalDamagedError, JournalTooNewError):
        assert read_place(closed) == len(STATES)


@pytest.mark.parametrize("part", [b"a secret", b'"waiting"', b'"workers"'])
def test_a_fault_in_a_record_is_refused(closed: Path, part: bytes) -> None:
    place = (closed / "journal.db").read_bytes().index(part)
    flip(closed / "journal.db", place + 2)
    with pytest.raises(JournalDamagedError, match="the checksum of the "):
        open_journal(closed, pytest.fail)


@pytest.mark.parametrize("table", ["meta", "snapshot", "difference"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("CAST(substr(body, 2) || x'ff' AS BLOB)", "the checksum of the "),
        ("CAST(body AS TEXT)", "the checksum of (the|a) "),  # one bit of a row says that
        ("CAST(x'ff' AS TEXT)", "the checksum of a text"),
    ],
)
def test_a_body_that_has_changed_is_refused_in_each_table(closed: Path, table: str, body: str, reason: str) -> None:
    change(closed, f"UPDATE {table} SET body = {body}")  # noqa: S608 - a table's name is no value
    with pytest.raises(JournalDamagedError, match=reason):
        open_journal(closed, pytest.fail)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM difference WHERE name = 5", "records are missing: it has 4 and then 6"),
        ("DELETE FROM difference WHERE name = 2", "records are missing: it has 1 and then 3"),
        ("DELETE FROM snapshot", "differences and no snapshot"),
        ("DELETE FROM meta WHERE name = 'term'", "its term is missing"),
        ("UPDATE difference SET name = 50 WHERE name = 12", "records are missing: it has 11 and then 50"),
        ("DROP TABLE difference", "no such table: difference"),
    ],
)
def test_a_record_that_is_missing_is_noticed(closed: Path, statement: str, reason: str) -> None:
    change(closed, statement)
    with pytest.raises(JournalDamagedError, match=reason):
        open_journal(closed, pytest.fail)


def test_a_record_of_something_else_is_refused(closed: Path) -> None:
    record = Record.encode("snapshot", 1, {"policy": {}, "colour": "red"})
    change(closed, "UPDATE snapshot SET body = ?, checksum = ?", record.body, record.checksum)
    with pytest.raises(JournalDamagedError, match="it holds no state of a job"):
        open_journal(closed, pytest.fail)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("np: 2\ncommand: python train.py\n" * 100, encoding="utf-8")
    with pytest.raises(JournalDamagedError, match="file is not a database"):
        open_journal(tmp_path, pytest.fail)


def test_a_newer_format_is_refused_and_stays_as_it_is(closed: Path) -> None:
    change(closed, "PRAGMA user_version = 2")
    known = (closed / "journal.db").read_bytes()
    with pytest.raises(JournalTooNewError, match="has format 2, and this hvdrun reads formats up to 1"):
        open_journal(closed, pytest.fail)
    assert (closed / "journal.db").read_bytes() == known


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_record_of_any_size_comes_back(size: int) -> None:
    record = Record.encode("difference", 3, ["a" * size])
    assert record.decode() == ["a" * size]
    assert len(record.body) < 4096
