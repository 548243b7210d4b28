"""Where the folders of detached jobs lie: on a local disk, for their owner alone."""

import os
from pathlib import Path

import pytest

from hvdrun.jobs import locations
from hvdrun.jobs.locations import FolderRefusedError, Locations, find_locations, is_local

SPARE = Path(f"/var/tmp/hvdrun-{os.geteuid()}")  # noqa: S108 - only its name is looked at
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / {home} rw - {kind} server:/home rw
31 22 0:41 / /sys rw - sysfs sysfs rw
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder on a mount of its own."""
    path = tmp_path / "a home"
    path.mkdir()
    return path


def mount(home: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = home.parent / "mountinfo"
    table.write_text(MOUNTS.format(home=str(home).replace(" ", "\\040"), kind=kind))
    monkeypatch.setattr(locations, "_MOUNTS", table)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs"])
def test_a_local_home_has_all(home: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(home, kind, monkeypatch)
    assert find_locations({"HOME": str(home)}) == Locations(home / ".local/state/hvdrun")
    assert find_locations({"HOME": "/none", "XDG_STATE_HOME": str(home)}) == Locations(home / "hvdrun")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "beegfs"])
def test_a_home_on_a_server_has_the_names_alone(home: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(home, kind, monkeypatch)
    assert find_locations({"HOME": str(home)}) == Locations(SPARE, home / ".local/state/hvdrun")


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "/dev/null/a"}, {"XDG_STATE_HOME": "state"}])
def test_a_user_without_a_home_has_a_folder_beside_it(environment: dict[str, str]) -> None:
    assert find_locations(environment) == Locations(SPARE)


def test_a_folder_that_the_user_names_has_no_other_beside_it(home: Path) -> None:
    (home / "state").touch(mode=0o600)
    found = find_locations({"HOME": str(home), "XDG_STATE_HOME": str(home / "state")})
    assert found == Locations(home / "state/hvdrun")
    assert not found.is_safe()
    with pytest.raises(FolderRefusedError, match=r"cannot be created \(Not a directory\): name another"):
        found.create()


def test_a_system_without_a_table_of_mounts_counts_as_local(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_MOUNTS", home / "none")
    assert is_local(home)


def test_places_are_their_owners_alone(home: Path) -> None:
    own = Locations(home / "jobs", home / "names")
    assert not own.is_safe()
    own.create()
    own.create()
    assert {path.stat().st_mode & 0o777 for path in (own.folders, home / "names")} == {0o700}
    assert own.is_safe()


def test_an_unsafe_place_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = home / "jobs"
    jobs.mkdir(mode=0o755)
    with pytest.raises(FolderRefusedError, match="is open to other users"):
        Locations(jobs).create()
    jobs.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(FolderRefusedError, match="belongs to another user"):
        Locations(jobs).create()
    assert not Locations(jobs).is_safe()
    monkeypatch.undo()
    link = home / "link"
    link.symlink_to(jobs)
    with pytest.raises(FolderRefusedError, match="is no folder"):
        Locations(link).create()
    (home / "file").touch()
    with pytest.raises(FolderRefusedError, match="cannot be created"):
        Locations(home / "file" / "jobs").create()


def test_other_machines_learn_of_a_job(home: Path) -> None:
    own = Locations(home / "jobs", home / "names")
    own.create()
    own.note("c0ffee")
    (home / "names" / "beef@login2").touch()
    assert [(job, machine) for job, machine, _ in own.list_elsewhere()] == [("beef", "login2")]
    own.forget("c0ffee")
    assert [path.name for path in (home / "names").iterdir()] == ["beef@login2"]
    assert list(Locations(home / "jobs").list_elsewhere()) == []
