"""A program of hvdrun chooses a temporary folder at its start, and ends as Python would, but for the teardown."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hvdrun.startup import process

PROGRAM = f"""
import atexit, sys, threading
from {process.__name__} import end_process

class Slow:
    def __del__(self):
        print("torn down")

slow = Slow()
threading.Thread(target=threading.Event().wait, daemon=True).start()
atexit.register(print, "exit handler")
sys.stdout = open(1, "w", buffering=8192, closefd=False)
sys.stdout.write("buffered ")
end_process(int(sys.argv[1]))
"""


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
    monkeypatch.setattr(process, "_USUAL", (str(tmp_path / usual),))
    monkeypatch.setattr(process, "_SHARED_MEMORY", str(folders["memory"]))
    process.find_temporary_folder()
    assert tempfile.gettempdir() == str(tmp_path / expected)
    assert os.environ["TMPDIR"] == str(tmp_path / exported)
    assert [list(folder.iterdir()) for folder in folders.values()] == [[]] * len(folders)


@pytest.mark.parametrize("code", [0, 125])
def test_exit_handlers_run_and_output_is_written(code: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (code, "buffered exit handler\n", "")


def test_output_that_cannot_be_written_is_reported() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, "0"], check=False, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writer)
    assert run.returncode == 120
    assert run.stderr == "the output cannot be written: [Errno 32] Broken pipe\n"
