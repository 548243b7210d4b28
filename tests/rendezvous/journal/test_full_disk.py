"""On a full disk a running job still decides: the journal gives its ballast back, and says so."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rendezvous.journal import ballast
from rendezvous.journal.errors import JournalUnwritableError
from rendezvous.journal.sqlite import open_journal
from tests.house.sources import ROOT
from tests.rendezvous.journal.reading import close, matches, opened, write
from tests.rendezvous.journal.states import join_all, place_workers

STATES = join_all(place_workers(40))
ALONE = ("unshare", "--mount", "--map-root-user", "sh", "-ec")
# A disk of 50 MB, which another program fills.
DISK = 'mount -t tmpfs -o size=50M disk "$1"; exec "$0" -m tests.rendezvous.journal.test_full_disk "$1"'


def show(value: object) -> None:
    """Let the test read it."""
    sys.stdout.write(f"{value}\n")


def fill(path: Path) -> None:
    """Take all room that the disk has."""
    with suppress(OSError), path.open("wb", buffering=0) as file:  # it is full
        while file.write(bytes(4096)):
            pass


def live(folder: Path) -> None:
    """Write states on a disk that is full, and say what the next server reads."""
    journal = open_journal(folder / "journal", warn=show)
    write(journal, STATES[0])
    show((folder / "journal" / "journal.ballast").exists())
    fill(folder / "other")
    write(journal, *STATES[1:])
    show((folder / "journal" / "journal.ballast").exists())
    close(journal)
    (folder / "other").unlink()
    with opened(folder / "journal") as journal:
        read = journal.read()
        show(read is not None and matches(read, STATES[-1]))
    show((folder / "journal" / "journal.ballast").exists())


def test_a_job_on_a_full_disk_still_decides_and_the_user_is_warned(tmp_path: Path) -> None:
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk of its own")
    command = [*ALONE, DISK, sys.executable, str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.stderr == ""
    had, warning, has, is_read, has_again = said.stdout.splitlines()
    assert (had, has, is_read, has_again) == ("True", "False", "True", "True")
    assert warning == (
        f"the disk of the journal {tmp_path}/journal/journal.db is full; the job continues for a while, since hvdrun "
        "has given its reserve back: free some space soon"
    )


def test_a_write_that_finds_no_room_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        write(journal, STATES[0])
        (tmp_path / "journal.ballast").unlink()
        (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
        journal._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalUnwritableError, match="database or disk is full; see whether its disk is full"):
            write(journal, *STATES)
        journal._connection.execute("PRAGMA max_page_count = 1000000")
        write(journal, STATES[-1])
    with opened(tmp_path) as journal:
        read = journal.read()
    assert read is not None
    assert matches(read, STATES[-1])


def test_a_small_disk_gets_no_ballast_and_the_user_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballast, "LEAST_FREE_BYTES", 1 << 60)
    said: list[str] = []
    close(open_journal(tmp_path, said.append))
    assert not (tmp_path / "journal.ballast").exists()
    (sentence,) = said
    assert "has less than 32 MB free, and so no reserve: free some space, or the job ends with its server" in sentence


def test_a_quota_without_room_leaves_no_ballast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert not ballast.Ballast(tmp_path / "b").create()
    assert not (tmp_path / "b").exists()


if __name__ == "__main__":
    live(Path(sys.argv[1]))
