"""The folders of one agent: one holds its socket and files of its workers, another in memory what they write there.

The agent removes them, or, after a kill, the agent's watchdog. Where both were killed they stay. An agent locks its
folder: one without a lock is an orphan, whichever container its agent ran in, and a later agent removes it.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rendezvous.bootstrap import SOCKET

_PATH_LIMIT = 90  # a Unix socket's path has 107 bytes at most
_TOKEN_BYTES = 7
_TRIES, _PAUSE_SECONDS = 50, 0.02  # while another agent removes the folder, which has no lock yet
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where folders in memory are
_NAME = re.compile(rf"\.?hvdrun-[0-9a-f]{{{2 * _TOKEN_BYTES}}}")


class AgentFolder:
    """The folder that an agent creates, locks and removes.

    Args:
        path: where it is created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def create(self) -> None:
        """Create it; it gets its name once it is locked.

        Raises:
            OSError: it cannot be created.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError, BlockingIOError):  # an agent takes it for left
                self._make()
                return
            time.sleep(_PAUSE_SECONDS)
        self._make()

    def _make(self) -> None:
        hidden = hide(self.path)
        hidden.mkdir(mode=0o700)
        self._lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise
        except OSError:
            # A file system without locks, where no agent takes it for an orphan.
            pass

        try:
            hidden.rename(self.path)
        except OSError:
            self._unlock()
            raise

    def remove(self) -> None:
        """Remove it, and its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def hide(path: Path) -> Path:
    """The path of a folder until it is locked."""
    return path.with_name(f".{path.name}")


def choose_folder(environment: Mapping[str, str]) -> Path:
    """A path for a new folder, short enough for a Unix socket in it.

    An agent that runs inside a worker has its folder in that of the outer agent, which removes both.
    """
    name = f"hvdrun-{secrets.token_hex(_TOKEN_BYTES)}"
    *places, last = _list_places(environment)
    for place in places:
        if len(os.fsencode(place / name)) <= _PATH_LIMIT and os.access(place, os.W_OK | os.X_OK):
            return place / name
    # The name cannot be guessed, and `create` fails where it exists.
    return last / name


def remove_orphans(environment: Mapping[str, str]) -> None:
    """Remove the folders of this user's killed agents, in the places where agents with this environment have theirs."""
    for path in _hold_orphans([*_list_places(environment), SHARED_MEMORY]):
        shutil.rmtree(path, ignore_errors=True)


def remove_orphans_in_memory() -> None:
    """Remove those in memory, which others may need."""
    for path in _hold_orphans([SHARED_MEMORY]):
        shutil.rmtree(path, ignore_errors=True)


def list_orphans(environment: Mapping[str, str]) -> list[Path]:
    """The folders that `remove_orphans` would remove."""
    return sorted(_hold_orphans([*_list_places(environment), SHARED_MEMORY]))


def _hold_orphans(places: Iterable[Path]) -> Iterator[Path]:
    """The folders of this user's killed agents; each is locked until the next one is asked for."""
    for path in {path for place in places for path in _find(place)}:
        with contextlib.suppress(OSError):  # another user's, in use, or removed meanwhile
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield path
            finally:
                os.close(folder)


def _list_places(environment: Mapping[str, str]) -> list[Path]:
    around = environment.get(SOCKET)
    inner = []
    if around is not None:
        inner = [Path(around).parent]
    return [*inner, Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - the last resort


def _find(place: Path) -> Iterator[Path]:
    """The entries of this folder that are named as an agent's folder, or as one that is not locked yet."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:  # there is no such folder, or it is another user's
        yield from (Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name))
