"""What `@record` writes is read, whatever else a worker may have put there."""

import json
import os
from pathlib import Path

import pytest

from hvdrun.agent.error_file import take_message
from rendezvous.bootstrap import name_error_file
from rendezvous.core.model import Slot, Worker

WORKER = Worker(Slot("a", 1), 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return name_error_file(tmp_path / "agent.sock", WORKER)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"message": {"message": "ValueError: no\n  data", "extraInfo": {"timestamp": "1"}}}, "ValueError: no data"),
        ({"message": "it failed"}, "it failed"),
        ({"message": "x" * 600}, "x" * 499 + "…"),
        ({"message": {}}, ""),
        ([1], ""),
    ],
)
def test_the_message_is_one_line_and_is_taken_once(path: Path, written: object, message: str) -> None:
    path.write_text(json.dumps(written))
    assert take_message(path.parent / "agent.sock", WORKER) == message
    assert not path.exists()
    assert take_message(path.parent / "agent.sock", WORKER) == ""


def test_a_file_that_is_no_error_file_gives_no_message(path: Path, tmp_path: Path) -> None:
    socket = path.parent / "agent.sock"
    path.write_bytes(b"\xff{")
    assert take_message(socket, WORKER) == ""
    path.unlink(missing_ok=True)
    os.mkfifo(path)  # no process writes into it
    assert take_message(socket, WORKER) == ""
    path.unlink(missing_ok=True)
    (tmp_path / "elsewhere").write_text(json.dumps({"message": "of another"}))
    path.symlink_to(tmp_path / "elsewhere")
    assert take_message(socket, WORKER) == ""
    path.unlink()
    path.mkdir()
    assert take_message(socket, WORKER) == ""
