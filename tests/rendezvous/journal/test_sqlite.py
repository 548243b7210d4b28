"""The journal holds what was written, in few and small records, and is for one server."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rendezvous.core import membership
from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import Reported, Ticked
from rendezvous.journal import file_systems, sqlite
from rendezvous.journal.errors import JournalInUseError, JournalPlaceError, JournalUnwritableError
from rendezvous.journal.journal import Journal
from rendezvous.journal.sqlite import open_journal
from tests.house.sources import ROOT
from tests.rendezvous.core.histories import KINDS
from tests.rendezvous.journal.reading import count_records, matches, opened, write
from tests.rendezvous.journal.states import join_all, list_states, place_workers

OPENS = """
import sys
from pathlib import Path
from rendezvous.journal.errors import JournalError
from rendezvous.journal.sqlite import open_journal
try:
    open_journal(Path(sys.argv[1]), print)
except JournalError as error:
    print(type(error).__name__)
"""

# A server with a child that ends, as an agent on this host may do; it writes on, and is killed.
LIVES = """
import os, sys
from tests.rendezvous.journal.test_sqlite import *
journal = open_journal(Path(sys.argv[1]), print)
first, *states = join_all(place_workers(6))
write(journal, first)
if os.fork() == 0:
    sys.exit()
os.wait()
write(journal, *states)
os.kill(os.getpid(), 9)
"""


def test_a_new_journal_is_empty_and_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "journal"
    with opened(folder) as journal:
        held: Journal = journal
        assert (held.term, held.read(), held.get("secret")) == (1, None, None)
        write(journal, place_workers(2))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {"journal.db", "journal.db-wal"} <= modes.keys()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_each_state_of_a_history_is_there_for_the_next_server(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MOST_DIFFERENCES", 7)
    states = list_states(seed)
    for start in range(0, len(states), 5):
        together = states[start : start + 5]
        with opened(tmp_path) as journal:
            read = journal.read()
            assert journal.term == start // 5 + 1
            assert (read is None) if start == 0 else (read is not None and matches(read, states[start - 1]))
            write(journal, *together)


def test_a_server_that_is_started_again_steps_on_from_the_state_that_it_reads(tmp_path: Path) -> None:
    *_, last = join_all(place_workers(3))
    host = "h0"
    last, _ = membership.step(last, Reported(host, tuple(record.worker for record in last.workers.values())))
    last, _ = membership.step(last, Ticked(100.0))
    with opened(tmp_path) as journal:
        write(journal, last)
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert (read.phase, read.has_ticked) == (Phase.RUNNING, False)
    later, effects = membership.step(read, Ticked(5000.0))
    assert effects == ()
    assert later.last_heard[host] == 5000.0, "the agent has a whole lease to come back"


def test_a_quiet_job_writes_nothing(tmp_path: Path) -> None:
    *_, state = join_all(place_workers(3))
    running = tuple(record.worker for record in state.workers.values())
    with opened(tmp_path) as journal:
        for event in (Ticked(0.0), Reported("h0", running)):
            state, _ = membership.step(state, event)
            write(journal, state)
        before = measure(tmp_path)
        for number in range(1, 50):
            state, _ = membership.step(state, Ticked(number * 0.25))
            write(journal, state)
            state, _ = membership.step(state, Reported("h0", running))
            write(journal, state)
        assert measure(tmp_path) == before
        write(journal, replace(state, failures=1))
        assert measure(tmp_path) != before


def measure(folder: Path) -> dict[str, tuple[int, int]]:
    """The sizes of a journal's files, and when they were written."""
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_the_first_report_of_a_host_lasts(tmp_path: Path) -> None:
    state = place_workers(2)
    with opened(tmp_path) as journal:
        write(journal, state)
        state, _ = membership.step(state, Reported("h0", tuple(record.worker for record in state.workers.values())))
        write(journal, state)
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert read.last_heard["h0"] is not None


def test_writes_that_are_asked_together_are_one_record(tmp_path: Path) -> None:
    states = join_all(place_workers(200))

    async def write_all() -> None:
        await asyncio.gather(*map(journal.write, states))

    with opened(tmp_path) as journal:
        write(journal, place_workers(200))
        asyncio.run(write_all())
        assert journal.read() is None
    assert count_records(tmp_path)["difference"] <= 2
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert matches(read, states[-1])


@pytest.mark.parametrize("limit", ["MOST_DIFFERENCES", "MOST_BYTES"])
def test_a_snapshot_takes_the_place_of_many_differences(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, limit, 10 if limit == "MOST_DIFFERENCES" else 2000)
    states = join_all(place_workers(30))
    with opened(tmp_path) as journal:
        write(journal, *states)
    records = count_records(tmp_path)
    assert records["snapshot"] == 1
    assert records["difference"] < 15
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert matches(read, states[-1])


def test_values_beside_the_state_are_there_for_the_next_server(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.put("secret", b"\0\xff")
        journal.put("ports", b"1")
        journal.put("ports", b"2")
    with opened(tmp_path) as journal:
        assert [journal.get(name) for name in ("secret", "ports", "other")] == [b"\0\xff", b"2", None]
        with pytest.raises(ValueError, match="the journal's own"):
            journal.put("term", b"1")


def test_a_second_server_is_refused_while_the_first_has_the_journal(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENS, str(tmp_path)]
    with opened(tmp_path) as journal:
        write(journal, place_workers(2))
        assert subprocess.check_output(command, cwd=ROOT, text=True) == "JournalInUseError\n"
        with pytest.raises(JournalInUseError, match="another server of this job runs"):
            open_journal(tmp_path, pytest.fail)
        write(journal, place_workers(3))
    assert subprocess.check_output(command, cwd=ROOT, text=True) == ""


def test_a_forked_process_that_ends_leaves_the_journal_as_it_is(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LIVES, str(tmp_path)], cwd=ROOT, check=False)
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert matches(read, join_all(place_workers(6))[-1])


def test_a_file_server_is_refused_as_the_place_of_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_systems.read_kind(tmp_path) not in {0, 0x6969}
    assert file_systems.read_kind(tmp_path / "absent") == 0
    monkeypatch.setattr(file_systems, "read_kind", lambda _: 0x6969)
    with pytest.raises(JournalPlaceError, match="would lie on NFS"):
        open_journal(tmp_path, pytest.fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalUnwritableError, match="Not a directory"):
        open_journal(tmp_path / "file" / "journal", pytest.fail)


def test_a_write_that_fails_is_tried_again_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = join_all(place_workers(4))
    with opened(tmp_path) as journal:
        write(journal, states[0])
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_insert", fail)
            with pytest.raises(JournalUnwritableError, match="disk I/O error"):
                write(journal, states[1])
        write(journal, states[1])
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert matches(read, states[1])


def fail(_: object) -> None:
    """A fault of the disk."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    raise error
