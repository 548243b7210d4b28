"""The files of checkpoints: whole or not there, and a damaged one gives way to the one before."""

import errno
import random
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from worker_runtime.checkpoints.folder import CheckpointFolder, tell_unsaved
from worker_runtime.errors import CheckpointError

WRITES_ON = """
import sys
from itertools import cycle
from pathlib import Path
from worker_runtime.checkpoints.folder import CheckpointFolder, tell_unsaved

for number in cycle(range(256)):
    CheckpointFolder(Path(sys.argv[1])).write(lambda file: [file.write(bytes([number]) * 10**5) for _ in range(10)])
    print(number, flush=True)
"""


def write(folder: Path, *contents: bytes) -> list[str]:
    """The names of the files that are there after these were written."""
    for content in contents:
        CheckpointFolder(folder).write(lambda file, content=content: file.write(content))  # type: ignore[misc]  # the default is the content
    return sorted(path.name for path in folder.iterdir())


def find(folder: Path) -> tuple[bytes | None, list[str]]:
    """The content of the newest one that is whole, and what was said."""
    said: list[str] = []
    path = CheckpointFolder(folder).find_newest(said.append)
    return (None if path is None else path.read_bytes().split(b"hvdrun.1")[0]), said


def test_the_two_newest_checkpoints_stay_in_a_folder_that_is_made_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert find(folder) == (None, [])
    assert write(folder, b"one") == ["checkpoint-000001.pt"]
    (folder / "other").touch()
    assert write(folder, b"two", b"three") == ["checkpoint-000002.pt", "checkpoint-000003.pt", "other"]
    assert find(folder) == (b"three", [])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], r"is damaged \(its checksum does not match\)"),
        (lambda data: data[: len(data) // 2], r"is damaged \(its checksum does not match\)"),
        (lambda _: b"", "is truncated"),
        *(
            (lambda data, at=at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "does not match")
            for at in (0, 999, 1003, -1)
        ),
        (lambda data: data + b"x", "does not match"),
    ],
    ids=["short", "half", "empty", "bit at 0", "bit at 999", "bit in the mark", "bit in the sum", "longer"],
)
def test_a_damaged_checkpoint_is_reported_and_the_former_one_is_used(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    write(tmp_path, b"one" * 1000, b"2" * 1000)
    newest = tmp_path / "checkpoint-000002.pt"
    newest.write_bytes(damage(newest.read_bytes()))
    content, (sentence,) = find(tmp_path)
    assert content == b"one" * 1000
    assert re.fullmatch(
        f"the checkpoint {newest} .*{words}.*; continuing with the one before, checkpoint-000001.pt", sentence
    )
    (tmp_path / "checkpoint-000001.pt").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=rf"{words}.*, and .*000001.pt is truncated; there is no other checkpoint"
    ):
        find(tmp_path)
    assert write(tmp_path, b"three") == ["checkpoint-000002.pt", "checkpoint-000003.pt"]
    assert find(tmp_path) == (b"three", [])


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), CheckpointError, "No space left on device; free space"),
        (KeyboardInterrupt("now"), KeyboardInterrupt, "now"),
    ],
    ids=["disk", "interrupt"],
)
def test_a_save_that_fails_leaves_the_former_checkpoints_as_they_were(
    tmp_path: Path, error: BaseException, expected: type[BaseException], words: str
) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"thr")
        raise error

    before = write(tmp_path, b"one", b"two")
    with pytest.raises(expected, match=words):
        CheckpointFolder(tmp_path).write(fail)
    assert (write(tmp_path), find(tmp_path)) == (before, (b"two", []))


def test_a_folder_of_a_killed_worker_is_no_checkpoint_and_is_removed(tmp_path: Path) -> None:
    write(tmp_path, b"one")
    unfinished = tmp_path / ".checkpoint.unfinished"
    unfinished.write_bytes(b"tw")
    assert find(tmp_path) == (b"one", [])
    assert not unfinished.exists()
    assert write(tmp_path, b"two") == ["checkpoint-000001.pt", "checkpoint-000002.pt"]


@pytest.mark.nightly
def test_a_worker_that_is_killed_while_it_writes_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    chance = random.Random(5)  # noqa: S311 - no secret
    for _ in range(30):
        writer = subprocess.Popen([sys.executable, "-c", WRITES_ON, tmp_path], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        with writer.stdout:
            writer.stdout.readline()  # the first one is there
            time.sleep(chance.uniform(0, 0.05))
            writer.kill()
            writer.wait()
        content, said = find(tmp_path)
        assert (content is not None and content == content[:1] * 10**6, said) == (True, [])
        assert len(list(tmp_path.glob("checkpoint-*"))) <= 3


def test_a_file_in_the_place_of_the_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for use in (lambda: write(path, b"one"), lambda: find(path), CheckpointFolder(path).check_writable):
        with pytest.raises(CheckpointError, match=f"{path}.*(File exists|Not a directory)"):
            use()


def test_a_folder_without_permission_is_one_error() -> None:
    with pytest.raises(CheckpointError, match=r"^no checkpoint can be written to /proc/1/x: ") as caught:
        CheckpointFolder(Path("/proc/1/x")).check_writable()
    assert "During handling" not in (shown := "".join(traceback.format_exception(caught.value)))
    assert "direct cause" not in shown


def test_a_folder_that_cannot_be_read_is_one_in_which_nothing_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_unsaved(tmp_path / ("x" * 300))
    tell_unsaved(tmp_path)
    assert capsys.readouterr().err.count("nothing was saved in ") == 2
