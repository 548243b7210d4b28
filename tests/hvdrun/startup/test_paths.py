"""Paths that this user may not look at are not there, and a working directory that cannot be used says why."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvdrun.startup import paths
from hvdrun.startup.paths import exists, find_closed, find_fault, is_file, is_folder, open_regular, read_file
from tests.strangers import as_stranger

HIDDEN = ["closed/file", "n" * 300, "loop", "file/below", "nothing", "nu\0l"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that every user may read, with one that only its owner may enter."""
    (tmp_path / "open").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "file").write_text("")
    (tmp_path / "closed").chmod(0)
    with as_stranger(tmp_path):
        yield tmp_path
    (tmp_path / "closed").chmod(0o700)


@pytest.mark.parametrize("name", HIDDEN)
def test_a_path_that_cannot_be_looked_at_counts_as_missing(folder: Path, name: str) -> None:
    assert not exists(folder / name)
    assert not is_file(folder / name)
    assert not is_folder(folder / name)


@pytest.mark.parametrize(("look", "found"), [(exists, ["file", "open"]), (is_file, ["file"]), (is_folder, ["open"])])
def test_files_and_folders_are_distinguished(folder: Path, look: Callable[[Path], bool], found: list[str]) -> None:
    assert [name for name in ("file", "open") if look(folder / name)] == found


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("open", None),
        ("file", "is no folder"),
        ("file/below", "is no folder"),
        ("nothing", "does not exist"),
        ("loop", "cannot be used (Too many levels of symbolic links)"),
        ("n" * 300, "cannot be used (File name too long)"),
        ("closed", "may not be entered by this user"),
        ("closed/file", "cannot be used (Permission denied)"),
    ],
)
def test_a_folder_that_no_process_can_work_in_says_why(folder: Path, name: str, fault: str | None) -> None:
    assert find_fault(folder / name) == fault


def test_a_closed_folder_is_no_proof_that_a_file_is_missing(folder: Path) -> None:
    assert find_closed(folder / "closed" / "nothing") == "Permission denied"
    assert find_closed(folder / "nothing") is None


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND])
def test_a_fifo_where_a_file_is_expected_blocks_no_reader(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match=r"no regular file|No such device"):
        open_regular(tmp_path / "fifo", flags)


@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_file_or_a_pipe_is_read_up_to_the_limit(tmp_path: Path, *, is_pipe: bool) -> None:
    path = tmp_path / "hosts"
    for data, most_bytes in ((b"", 9), (b"a:1 b:2", 7), (b"a:1 b:2", 3)):
        if is_pipe:
            os.mkfifo(path)
            writer = threading.Thread(target=path.write_bytes, args=[data])
            writer.start()
        else:
            path.write_bytes(data)
        assert read_file(path, most_bytes) == data[: most_bytes + 1]
        if is_pipe:
            writer.join()
        path.unlink()


def test_a_pipe_without_a_writer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PIPE_SECONDS", 0.01)
    os.mkfifo(tmp_path / "hosts")
    with pytest.raises(OSError, match=r"for 0\.01 s nothing has come out of this pipe"):
        read_file(tmp_path / "hosts", 9)
