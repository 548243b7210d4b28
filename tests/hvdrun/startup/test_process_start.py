"""What each program of hvdrun sets at its start."""

import os
import tempfile
from pathlib import Path

import pytest

from hvdrun.startup import process_start


@pytest.mark.parametrize(
    ("candidates", "expected", "exported"),
    [
        (("named", "usual"), "named", "named"),
        (("missing", "usual"), "usual", "missing"),
        (("read-only", "usual"), "usual", "read-only"),
        (("read-only", "missing"), "memory", "memory"),
    ],
)
def test_the_first_folder_that_can_be_written_takes_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, candidates: tuple[str, str], expected: str, exported: str
) -> None:
    named, usual = candidates
    folders = {name: tmp_path / name for name in ("named", "usual", "read-only", "memory")}
    for folder in folders.values():
        folder.mkdir()
    read_only = str(folders["read-only"])
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path not in {read_only, os.curdir} and access(path, mode))
    monkeypatch.setenv("TMPDIR", str(tmp_path / named))
    for name in ("TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(process_start, "_USUAL", (str(tmp_path / usual),))
    monkeypatch.setattr(process_start, "_SHARED_MEMORY", str(folders["memory"]))
    process_start.find_temporary_folder()
    assert tempfile.gettempdir() == str(tmp_path / expected)
    assert os.environ["TMPDIR"] == str(tmp_path / exported)
    assert [list(folder.iterdir()) for folder in folders.values()] == [[]] * len(folders)
