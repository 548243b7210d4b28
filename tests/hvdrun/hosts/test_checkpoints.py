"""One job at a time uses a folder of checkpoints."""

from pathlib import Path

import pytest

from hvdrun.hosts.checkpoints import CheckpointsInUseError, hold_checkpoints
from tests.hvdrun.interpreter import run_python


def test_a_second_job_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with hold_checkpoints(folder):
        refused = run_python("-m", "hvdrun", "-np", "1", "--checkpoint", folder, "echo", "started")
        assert (refused.returncode, refused.stdout) == (75, "")
        assert refused.stderr.startswith(f"hvdrun: another job uses the checkpoints in {folder} (--checkpoint): ")
        (folder / "checkpoint-000001.pt").touch()
    with hold_checkpoints(folder), pytest.raises(CheckpointsInUseError), hold_checkpoints(folder):
        pass
    assert [path.name for path in folder.iterdir()] == ["checkpoint-000001.pt"]


@pytest.mark.parametrize("name", ["kept", "no/folder"])
def test_a_job_that_saved_no_checkpoint_leaves_no_folder(name: str, tmp_path: Path) -> None:
    with hold_checkpoints(tmp_path / name), hold_checkpoints(None):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_killed_launcher_has_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".hvdrun.lock").touch()
    with hold_checkpoints(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
