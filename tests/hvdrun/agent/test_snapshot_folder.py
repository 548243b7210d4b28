"""The folder in memory for the files of a job's scripts: who has it, and when it is empty."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.agent import snapshot_folder
from hvdrun.agent.snapshot_folder import SnapshotFolder, find_lack
from hvdrun.agent.spawn import WorkerEnvironment
from hvdrun.processes import folder as folders
from hvdrun.processes.folder import AgentFolder, list_orphans, remove_orphans
from rendezvous.bootstrap import SNAPSHOT_DIR, torch_job_environment
from rendezvous.core.model import Endpoint, Round
from tests.hvdrun.agent.jobs import LAUNCH, make_begin

RESTARTS = {os.fsencode(name): os.fsencode(value) for name, value in torch_job_environment(3).items()}
NAME = f"hvdrun-{'5' * 14}"
ALONE = Round(0, 0, 1, files_since=0)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for /dev/shm, and is a tmpfs of 1 GB."""
    place = tmp_path / "shm"
    place.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk {place} ext4 rw 0 0\ntmpfs {place} tmpfs rw 0 0\n", encoding="utf-8")
    for module in (snapshot_folder, folders):
        monkeypatch.setattr(module, "SHARED_MEMORY", place)
    monkeypatch.setattr(snapshot_folder, "_MOUNTS", mounts)
    monkeypatch.setattr(snapshot_folder, "LEAST_BYTES", 1)
    return place


@pytest.fixture
def remarks() -> list[str]:
    return []


@pytest.fixture
def folder(memory: Path, remarks: list[str]) -> Iterator[SnapshotFolder]:
    folder = SnapshotFolder(Path("/tmp") / NAME, RESTARTS, remarks.append)  # noqa: S108 - only its name counts
    yield folder
    folder.remove()
    assert [*memory.iterdir()] == []


def find(folder: SnapshotFolder, number: int, files_since: int | None, hosts: int = 1) -> Path | None:
    return folder.find(Round(number, 0, hosts, files_since=files_since))


def test_a_round_finds_what_the_last_one_has_written_and_a_new_series_finds_nothing(folder: SnapshotFolder) -> None:
    first = find(folder, 0, 0)
    assert first is not None
    (first / "checkpoint").touch()
    assert folder.find(ALONE) == first
    assert find(folder, 1, 0) == first
    assert [*first.iterdir()] == [first / "checkpoint"]
    second = find(folder, 4, 4)
    assert second is not None
    assert [*second.iterdir()] == []
    assert not first.exists()  # a process that is left of the first series cannot write there


def test_a_round_of_several_hosts_has_none_and_ends_the_files(folder: SnapshotFolder, remarks: list[str]) -> None:
    first = find(folder, 0, 0)
    assert first is not None
    assert find(folder, 1, None, hosts=2) is None
    assert find(folder, 2, None, hosts=2) is None
    assert remarks == ["HVD_SNAPSHOT_DIR is not set: this round has several hosts, and each would have other files"]
    assert not first.exists()
    assert find(folder, 3, 3) is not None


def test_a_folder_that_no_host_has_is_said_by_the_first(folder: SnapshotFolder, remarks: list[str]) -> None:
    assert folder.find(Round(0, 1, 2)) is None
    assert remarks == []


def test_a_folder_is_for_workers_of_a_round_in_a_job_with_restarts(memory: Path, folder: SnapshotFolder) -> None:
    assert folder.find(None) is None
    assert SnapshotFolder(Path(NAME), {}, lambda _: None).find(ALONE) is None
    assert [*memory.iterdir()] == []


def test_only_a_large_tmpfs_holds_files(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    assert find_lack(memory, mounts) == ""
    monkeypatch.setattr(snapshot_folder, "LEAST_BYTES", 2**80)
    assert find_lack(memory, mounts).endswith("and less than 1 GB is too little (docker run --shm-size)")
    mounts.write_text(f"tmpfs {memory} tmpfs rw 0 0\ndisk {memory} ext4 rw 0 0\n", encoding="utf-8")
    assert find_lack(memory, mounts) == f"{memory} is no tmpfs"


def test_the_reason_is_said_once(folder: SnapshotFolder, remarks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_folder, "LEAST_BYTES", 2**80)
    assert [find(folder, number, 0) for number in range(3)] == [None] * 3
    (remark,) = remarks
    assert remark.startswith("HVD_SNAPSHOT_DIR is not set: ")


def test_a_folder_that_cannot_be_made_is_no_error_of_the_job(
    folder: SnapshotFolder, remarks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: AgentFolder) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AgentFolder, "create", fail)
    assert find(folder, 0, 0) is None
    assert remarks == ["HVD_SNAPSHOT_DIR is not set: it cannot be made (No space left on device)"]


def test_a_folder_that_a_killed_agent_has_left_in_memory_is_removed_before_and_after(
    memory: Path, folder: SnapshotFolder
) -> None:
    left = memory / f"hvdrun-{'6' * 14}"
    left.mkdir()
    assert find(folder, 0, 0) is not None
    assert [*memory.iterdir()] == [folder.path]
    left.mkdir()
    assert left in list_orphans({})
    remove_orphans({})
    assert [*memory.iterdir()] == [folder.path]


@pytest.mark.parametrize("chosen", ["", "/scratch/mine"])
def test_a_worker_has_the_folder_in_memory_unless_x_names_another_one(
    folder: SnapshotFolder, tmp_path: Path, chosen: str
) -> None:
    begin = make_begin(tmp_path, **({SNAPSHOT_DIR: chosen} if chosen else {}))
    launch = replace(LAUNCH, round=replace(ALONE, master=Endpoint("a", 1)))
    own = WorkerEnvironment(begin, tmp_path / "agent.sock", folder).of(launch)[SNAPSHOT_DIR.encode()]
    if chosen:
        assert (os.fsdecode(own), folder.path.exists()) == (chosen, False)
    else:
        assert Path(os.fsdecode(own)).parent == folder.path
