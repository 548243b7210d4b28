"""The journal in a file of SQLite: a snapshot of the state, and the differences since.

A write is durable when it returns (WAL, synchronous=FULL). One thread writes. States that come meanwhile are written
together, as one difference between the newest of them and the last state that was written.
"""

import asyncio
import ctypes
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from rendezvous.core.state import State
from rendezvous.journal.ballast import LEAST_FREE_BYTES, Ballast
from rendezvous.journal.codec import decode, encode
from rendezvous.journal.difference import apply, difference
from rendezvous.journal.errors import (
    JournalDamagedError,
    JournalError,
    JournalInUseError,
    JournalPlaceError,
    JournalTooNewError,
    JournalUnwritableError,
)
from rendezvous.journal.file_systems import find_shared_kind
from rendezvous.journal.persistent import PersistentState, is_quiet, resume
from rendezvous.journal.records import BadRecordError, Record
from rendezvous.journal.write_ahead_log import has_lost_commits

FORMAT = 1
MOST_DIFFERENCES = 1000  # since the last snapshot
MOST_BYTES = 4 << 20  # of these differences

_FILE, _BALLAST = "journal.db", "journal.ballast"
_TERM = "term"
_CLOCK = "now"  # the field that changes without a decision
_META, _SNAPSHOT, _DIFFERENCE = "meta", "snapshot", "difference"
_TABLES = (
    f"CREATE TABLE {_META}(name TEXT PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE TABLE {_SNAPSHOT}(name INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL)",
    f"CREATE TABLE {_DIFFERENCE}(name INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL)",
    f"PRAGMA user_version = {FORMAT}",
)
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})  # the second where a quota is used up
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})  # a table is missing


def open_journal(folder: Path, warn: Callable[[str], None]) -> "SqliteJournal":
    """The journal in this folder, which is created where there is none, for one server.

    Args:
        folder: on a local disk.
        warn: gets a sentence about what the user has to do soon.

    Raises:
        JournalError: it cannot be used.
    """
    path = folder / _FILE
    with _explain(path):
        _create_file(path)
        log = path.with_name(f"{_FILE}-wal")
        if log.exists() and has_lost_commits(log.read_bytes()):
            _refuse_if_used(path)
            raise JournalDamagedError(path, "commits are missing in the middle of its write-ahead log")
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        # A process that was forked from the server has a copy. It must never close that: SQLite would take it for the
        # last user of the file, and would write the log as it was at the fork into the file.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        try:
            return SqliteJournal(path, connection, warn)
        except BaseException:
            connection.close()
            raise


class SqliteJournal:
    """See `Journal`; `open_journal` opens it.

    Args:
        path: of the file.
        connection: to it, used by nothing else.
        warn: gets a sentence about what the user has to do soon.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, warn: Callable[[str], None]) -> None:
        self._path = path
        self._connection = connection
        self._warn = warn
        self._ballast = Ballast(path.with_name(_BALLAST))
        self._number = 0  # of the last record
        self._differences = 0  # since the last snapshot
        self._bytes = 0  # of these
        self._warnings: list[str] = []
        is_new = self._prepare()
        part = None if is_new else self._load()
        self._resumed = None if part is None else resume(part)
        self._written = None if part is None or self._resumed is None else PersistentState(self._resumed, part)
        self._requested: tuple[int, State | None] = 0, self._resumed  # how many decisions were made; the newest state
        self._durable = 0  # how many of these decisions are durable
        self.term = 1 if is_new else int(self._get(_TERM)) + 1
        self._begin_term(is_new=is_new)
        if not self._ballast.create():
            self._warnings.append(
                f"the disk of the journal {path} has less than {LEAST_FREE_BYTES >> 20} MB free, and so no reserve: "
                "free some space, or the job ends with its server once the disk is full"
            )
        self._thread = ThreadPoolExecutor(1, "hvdrun-journal")
        self._pass_on_warnings()

    def read(self) -> State | None:
        """See `Journal`."""
        return self._resumed

    def get(self, name: str) -> bytes | None:
        """See `Journal`."""
        with _explain(self._path):
            return self._thread.submit(self._find, _META, name).result()

    def put(self, name: str, value: bytes) -> None:
        """See `Journal`."""
        if name == _TERM:
            raise ValueError("the term is the journal's own")
        self._thread.submit(self._commit, lambda: self._insert(Record.create(_META, name, value))).result()
        self._pass_on_warnings()

    async def write(self, state: State) -> None:
        """See `Journal`."""
        count, newest = self._requested
        if newest is not None and is_quiet(newest, state):
            self._requested = count, state
            if self._durable == count:
                return
        else:
            self._requested = count + 1, state
        await asyncio.get_running_loop().run_in_executor(self._thread, self._flush)
        self._pass_on_warnings()

    async def close(self) -> None:
        """See `Journal`."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    def _flush(self) -> None:
        """Write the newest state, if no earlier call has done that."""
        count, state = self._requested
        if count == self._durable or state is None:
            return
        if self._written is None:
            persistent = PersistentState.of(state)
            self._write_snapshot(persistent)
        else:
            persistent = self._written.follow(state)
            self._write_difference(self._written, persistent)
        self._durable = count
        if self._differences >= MOST_DIFFERENCES or self._bytes >= MOST_BYTES:
            self._compact(persistent)

    def _write_difference(self, former: PersistentState, persistent: PersistentState) -> None:
        changes = difference(former.part, persistent.part)
        if changes is None or changes.keys() == {_CLOCK}:
            return
        record = Record.encode(_DIFFERENCE, self._number + 1, changes)
        self._commit(lambda: self._insert(record))
        self._number += 1
        self._differences += 1
        self._bytes += len(record.body)
        self._written = persistent

    def _compact(self, persistent: PersistentState) -> None:
        try:
            self._write_snapshot(persistent)
        except JournalUnwritableError:
            return  # what was asked is durable, and the next flush tries again
        self._ballast.create()

    def _write_snapshot(self, persistent: PersistentState) -> None:
        number = self._number + 1
        record = Record.encode(_SNAPSHOT, number, encode(persistent.part))

        def replace_all() -> None:
            self._connection.execute(f"DELETE FROM {_SNAPSHOT}")  # noqa: S608 - a name of a table is no value
            self._connection.execute(f"DELETE FROM {_DIFFERENCE}")  # noqa: S608 - a name of a table is no value
            self._insert(record)

        self._commit(replace_all)
        self._number, self._differences, self._bytes = number, 0, 0
        self._written = persistent

    def _insert(self, record: Record) -> None:
        statement = f"INSERT OR REPLACE INTO {record.kind} VALUES(?, ?, ?)"
        self._connection.execute(statement, (record.name, record.body, record.checksum))

    def _commit(self, change: Callable[[], None]) -> None:
        """Make a change durable; where the disk is full, after the ballast is removed.

        Raises:
            JournalUnwritableError: nothing has changed.
        """
        with _explain(self._path):
            try:
                self._try_commit(change)
            except sqlite3.Error as error:
                if error.sqlite_errorcode not in _FULL or not self._ballast.release():
                    raise
                self._try_commit(change)
                self._warnings.append(
                    f"the disk of the journal {self._path} is full; the job continues for a while, since hvdrun has "
                    "given its reserve back: free some space soon"
                )

    def _try_commit(self, change: Callable[[], None]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            change()
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it itself after some errors
                self._connection.execute("ROLLBACK")
            raise

    def _pass_on_warnings(self) -> None:
        while self._warnings:
            self._warn(self._warnings.pop(0))

    def _prepare(self) -> bool:
        """Lock the file for this process, and check all of it; returns whether nothing was ever written."""
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # before anything else, so that no other process is heard
        (format_,) = execute("PRAGMA user_version").fetchone()
        if format_ > FORMAT:
            raise JournalTooNewError(self._path, format_, FORMAT)
        (verdict,) = execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise JournalDamagedError(self._path, verdict)
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        return bool(format_ == 0)

    def _begin_term(self, *, is_new: bool) -> None:
        term = Record.create(_META, _TERM, str(self.term).encode())

        def begin() -> None:
            for statement in _TABLES if is_new else ():
                self._connection.execute(statement)
            self._insert(term)

        self._commit(begin)
        with suppress(sqlite3.Error):  # on a full disk the frames of the former server stay, as those of this one
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _get(self, name: str) -> bytes:
        body = self._find(_META, name)
        if body is None:
            raise JournalDamagedError(self._path, f"its {name} is missing")
        return body

    def _find(self, table: str, name: str) -> bytes | None:
        row = self._connection.execute(
            f"SELECT body, checksum FROM {table} WHERE name = ?",  # noqa: S608 - a table's name is no value
            (name,),
        ).fetchone()
        return None if row is None else Record(table, name, *row).check()

    def _list(self, table: str) -> list[Record]:
        rows = self._connection.execute(f"SELECT * FROM {table} ORDER BY name")  # noqa: S608 - a table's name is no value
        return [Record(table, *row) for row in rows]

    def _load(self) -> State | None:
        """The state that was written last."""
        for record in self._list(_META):
            record.check()
        snapshots, differences = self._list(_SNAPSHOT), self._list(_DIFFERENCE)
        if not snapshots and not differences:
            return None
        numbers = [record.name for record in (*snapshots, *differences)]
        if len(snapshots) != 1 or numbers != list(range(int(numbers[0]), int(numbers[0]) + len(numbers))):
            raise JournalDamagedError(self._path, f"records are missing: it has {_describe(numbers)}")
        try:
            state = decode(State, snapshots[0].decode())
            for record in differences:
                state = apply(record.decode(), state)
        except BadRecordError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise JournalDamagedError(self._path, f"it holds no state of a job ({error!r})") from error
        self._number = int(numbers[-1])
        self._differences = len(differences)
        self._bytes = sum(len(record.body) for record in differences)
        return state


def _describe(numbers: list[int | str]) -> str:
    gaps = [f"{former} and then {later}" for former, later in pairwise(numbers) if later != int(former) + 1]
    return gaps[0] if gaps else "differences and no snapshot"


def _create_file(path: Path) -> None:
    """Create the folder and the file, for this user alone.

    Raises:
        JournalPlaceError: the folder is on a file server.
        OSError: that is not possible.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kind = find_shared_kind(path.parent)
    if kind is not None:
        raise JournalPlaceError(path, kind)
    if not path.exists():
        path.touch(mode=0o600, exist_ok=False)
        for folder in (path.parent, path.parent.parent):
            _sync(folder)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_if_used(path: Path) -> None:
    """Raise SQLite's error if a server has the file: while it writes, frames of the log are bad for a moment."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise
    finally:
        connection.close()


@contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Raise the errors of SQLite and of the system, and bad records, as errors of the journal."""
    try:
        yield
    except JournalError:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_BUSY:
            raise JournalInUseError(path) from error
        if code is None and isinstance(error, sqlite3.OperationalError):  # Python cannot decode it
            raise JournalDamagedError(path, "the checksum of a text is wrong") from error
        if code in _DAMAGED:
            raise JournalDamagedError(path, str(error)) from error
        raise JournalUnwritableError(path, str(error)) from error
    except OSError as error:
        raise JournalUnwritableError(path, error.strerror or str(error)) from error
    except BadRecordError as error:
        raise JournalDamagedError(path, str(error)) from error
