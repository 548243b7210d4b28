"""What each program of hvdrun sets at its start."""

import os
import tempfile
from pathlib import Path

import pytest

from hvdrun.startup import process_start


@pytest.mark.parametrize(("candidate", "expected"), [("missing", "memory"), ("", None)])
def test_shared_memory_takes_temporary_files_where_no_other_folder_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, candidate: str, expected: str | None
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("TMPDIR", "")  # else what the program sets would stay for other tests
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / candidate)])
    monkeypatch.setattr(process_start, "_SHARED_MEMORY", str(memory))
    process_start.find_temporary_folder()
    assert os.environ.get("TMPDIR") == (expected and str(tmp_path / expected))
    assert tempfile.gettempdir() == str(tmp_path / (expected or ""))
