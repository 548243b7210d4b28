"""Where multiprocessing keeps its sockets in a worker, and when it is left alone."""

import multiprocessing.process
import multiprocessing.util
import os
from collections.abc import Iterator
from multiprocessing.connection import Listener
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from worker_runtime.multiprocessing_folder import place_below


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a test this process is one that has not been told yet where to keep its sockets."""
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", {})


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path short enough for a socket below it."""
    with TemporaryDirectory(prefix="hvt-") as name:
        yield Path(name)


def find_place() -> str | None:
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]  # private, and the only place
    return config.get("tempdir")  # type: ignore[no-any-return]  # a str or None


def test_its_sockets_are_in_a_folder_that_is_this_user_s_alone(folder: Path) -> None:
    place_below(folder)
    place_below(folder)
    place = folder / f"mp-{os.getpid()}"
    assert multiprocessing.util.get_temp_dir() == str(place)
    assert place.stat().st_mode & 0o777 == 0o700
    with Listener(family="AF_UNIX") as listener:
        assert Path(str(listener.address)).parent == place


def test_what_the_program_has_chosen_stays(folder: Path) -> None:
    multiprocessing.process.current_process()._config["tempdir"] = "mine"  # type: ignore[attr-defined]  # the same
    place_below(folder)
    assert find_place() == "mine"
    assert not list(folder.iterdir())


def test_the_longest_path_that_a_socket_may_have_is_used_and_no_longer_one(folder: Path) -> None:
    rest = 107 - len(f"{folder}//mp-{os.getpid()}/listener-12345678")
    (longer := folder / ("x" * (rest + 1))).mkdir()
    place_below(longer)
    assert find_place() is None
    (longest := folder / ("x" * rest)).mkdir()
    place_below(longest)
    with Listener(family="AF_UNIX") as listener:
        assert len(str(listener.address)) == 107


def test_without_a_folder_or_in_one_that_is_gone_it_has_its_own_place(folder: Path) -> None:
    place_below(None)
    place_below(folder / "gone")
    assert find_place() is None
    assert not list(folder.iterdir())
