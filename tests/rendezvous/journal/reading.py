"""What a journal holds, compared with the states that were written."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rendezvous.core.state import State
from rendezvous.journal.codec import encode
from rendezvous.journal.persistent import PersistentState
from rendezvous.journal.sqlite import SqliteJournal, open_journal


def matches(read: State, written: State) -> bool:
    """The state that was read is the one that was written, but for what does not last; in the same order."""
    lasting = PersistentState.of(replace(written, now=read.now)).part
    return bool(encode(PersistentState.of(read).part) == encode(lasting))


def close(journal: SqliteJournal) -> None:
    """End the use of a journal, outside of an event loop."""
    asyncio.run(journal.close())


def write(journal: SqliteJournal, *states: State) -> None:
    """Write states one after the other, outside of an event loop."""

    async def write_all() -> None:
        for state in states:
            await journal.write(state)

    asyncio.run(write_all())


def count_records(folder: Path) -> dict[str, int]:
    """How many records a closed journal has, by kind."""
    with closing(sqlite3.connect(folder / "journal.db")) as connection:
        names = ("snapshot", "difference")
        counts = [connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names]  # noqa: S608 - no input
    return dict(zip(names, counts, strict=True))


@contextmanager
def opened(folder: Path) -> Iterator[SqliteJournal]:
    """The journal of a folder, closed at the end."""
    journal = open_journal(folder, warn=pytest.fail)
    try:
        yield journal
    finally:
        close(journal)
