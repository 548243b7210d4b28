"""Where an agent's folder is, and which folders are taken for orphans."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvdrun.processes.folder import AgentFolder, choose_folder, hide, remove_orphans


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in whose path there is room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder:
        yield Path(folder)


def test_a_folder_has_a_name_of_its_own_and_is_not_made_yet(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    folders = {choose_folder({}) for _ in range(10)}
    assert len(folders) == 10
    assert all(folder.parent == short_path and not folder.exists() for folder in folders)
    assert choose_folder({"HVD_SOCKET": "/no/such/folder/agent.sock"}).parent == short_path


def test_an_agent_inside_a_worker_has_its_folder_in_that_of_the_agent_around(short_path: Path) -> None:
    assert choose_folder({"HVD_SOCKET": str(short_path / "agent.sock")}).parent == short_path


def test_a_path_too_long_for_a_socket_is_not_used(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = short_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = choose_folder({"HVD_SOCKET": str(deep / "agent.sock")})
    assert folder.parent == Path("/tmp")  # noqa: S108 - where it is to be
    assert len(os.fsencode(folder / "agent.sock")) <= 107


def test_only_a_folder_that_no_agent_holds_is_removed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    used, left = AgentFolder(choose_folder({})), AgentFolder(choose_folder({}))
    for folder in (used, left):
        folder.create()
        (folder.path / "agent.sock").touch()
    hide(choose_folder({})).mkdir()  # its agent was killed before it had locked it
    os.close(left._lock)  # as the end of its agent does
    other = short_path / "hvdrun-notes"
    other.mkdir()
    link = short_path / f"hvdrun-{'0' * 14}"
    link.symlink_to(other)
    remove_orphans({})
    assert {*short_path.iterdir()} == {used.path, other, link}
    used.remove()
    assert not used.path.exists()


@pytest.mark.parametrize("step", ["open", "flock", "rename"])
def test_an_agent_whose_folder_another_removes_before_it_is_locked_makes_it_anew(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    folder = AgentFolder(choose_folder({}))
    hidden = hide(folder.path)
    module = {"open": os, "flock": fcntl, "rename": Path}[step]
    original: Callable[..., object] = getattr(module, step)
    others: list[int] = []

    def be_overtaken(*arguments: object, **named: object) -> object:
        """The other agent does its part first; it is met once."""
        monkeypatch.setattr(module, step, original)
        if step == "flock":  # the other agent holds the lock, and removes the folder after our try
            others.append(os.open(hidden, os.O_RDONLY))
            fcntl.flock(others[0], fcntl.LOCK_EX)
            monkeypatch.setattr("time.sleep", lambda _: hidden.rmdir())
        else:
            hidden.rmdir()
        return original(*arguments, **named)

    monkeypatch.setattr(module, step, be_overtaken)
    folder.create()
    assert folder.path.is_dir()
    assert not hidden.exists()
    remove_orphans({})
    assert folder.path.is_dir()  # its owner still holds the lock
    folder.remove()
    for other in others:
        os.close(other)
