"""The folder of a detached job: who holds it, how the job ended, and when it expires."""

import errno
import os
import time
from pathlib import Path

import pytest

from hvdrun.jobs import folder as folders
from hvdrun.jobs.folder import JobFolder, list_expired, list_folders
from hvdrun.jobs.record import JobRecord
from tests.hvdrun.jobs.detached import holding, make_folder


def test_a_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "c0ffee", 7)
    modes = {path: path.stat().st_mode & 0o777 for path in (folder.path, *folder.path.iterdir())}
    assert {mode for path, mode in modes.items() if path != folder.path} == {0o600}
    assert modes[folder.path] == 0o700


def test_the_kernel_names_the_launcher_until_it_ends(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "c0ffee")
    folder.create(JobRecord("c0ffee", ("true",)))
    assert list(list_folders(tmp_path)) == []  # it has no launcher yet
    with holding(folder) as pid:
        assert folder.find_launcher() == pid
        assert [each.job for each in list_folders(tmp_path)] == ["c0ffee"]
    assert folder.find_launcher() is None
    assert folder.read_end() is None


def test_a_look_at_a_folder_does_not_unlock_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "c0ffee")
    folder.create(JobRecord("c0ffee", ("true",)))
    with holding(folder) as pid:
        assert [folder.find_launcher() for _ in range(3)] == [pid] * 3


def test_the_end_is_kept(tmp_path: Path) -> None:
    end = make_folder(tmp_path, "c0ffee", 143).read_end()
    assert end is not None
    assert end.exit_code == 143


def test_the_end_is_kept_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path, "c0ffee")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders, "_write", refuse)  # no new file has room
    folder.end(7)
    end = folder.read_end()
    assert end is not None
    assert end.exit_code == 7


def test_a_damaged_folder_has_no_record_and_no_end(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "c0ffee", 0)
    for name in ("job.json", "end.json"):
        (folder.path / name).write_text('{"exit_code": [')
    assert folder.read_record() is None
    assert folder.read_end() is None
    (folder.path / "job.json").write_text("[1]")
    assert folder.read_record() is None


def test_the_record_of_a_newer_version_is_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "c0ffee", 0)
    path = folder.path / "job.json"
    path.write_text(path.read_text().replace("{", '{"unheard_of": 1, ', 1))
    record = folder.read_record()
    assert record is not None
    assert (record.job, record.command) == ("c0ffee", ("python", "train.py"))


def test_old_jobs_expire_and_running_ones_never(tmp_path: Path) -> None:
    old, new = make_folder(tmp_path, "old", 0), make_folder(tmp_path, "new", 0)
    now = time.time()
    for path in old.path.iterdir():
        os.utime(path, (now, now - folders.KEPT_SECONDS - 10))
    assert [folder.job for folder in list_expired(tmp_path, now)] == ["old"]
    later = now + 2 * folders.KEPT_SECONDS
    assert {folder.job for folder in list_expired(tmp_path, later)} == {"old", "new"}
    running = JobFolder(tmp_path / "running")
    running.create(JobRecord("running", ("true",)))
    with holding(running):
        assert {folder.job for folder in list_expired(tmp_path, later)} == {"old", "new"}
    lost = JobFolder(tmp_path / "lost")
    lost.create(JobRecord("lost", ("true",)))  # and its launcher was killed
    assert "lost" in {folder.path.name.lstrip(".") for folder in list_expired(tmp_path, later)}
    new.remove()
    assert not new.path.exists()


def test_the_oldest_expire_where_all_are_too_large(tmp_path: Path) -> None:
    now = time.time()
    for age, job in enumerate(("first", "second", "third")):
        folder = make_folder(tmp_path, job, 0)
        with (folder.path / "log.1").open("wb") as file:
            file.truncate(folders.KEPT_BYTES * 2 // 5)
        for path in folder.path.iterdir():
            os.utime(path, (now, now - 100 * age))
    assert [folder.job for folder in list_expired(tmp_path, now)] == ["third"]
