"""The folder of one agent, which holds its socket and what its workers keep there.

It goes with the agent, or with the watchdog of an agent that was killed. Where both were killed it is left: an agent
holds a lock of its folder, so that a folder without a lock is known as an orphan, in whatever container its agent ran.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rendezvous.bootstrap import SOCKET

_PATH_LIMIT = 90  # a Unix socket's path has 107 bytes at most
_TOKEN_BYTES = 7
_NAME = re.compile(rf"hvdrun-[0-9a-f]{{{2 * _TOKEN_BYTES}}}")


class AgentFolder:
    """A folder that is made, locked and removed by its agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def make(self) -> None:
        """Make it; nobody sees it by its name before it is locked.

        Raises:
            OSError: it cannot be made.
        """
        hidden = hide(self.path)
        hidden.mkdir(mode=0o700)
        self._lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks, on which nobody can take it for an orphan
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.rename(self.path)

    def remove(self) -> None:
        """Remove it, and let go of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def hide(path: Path) -> Path:
    """Where a folder is while it is being made."""
    return path.with_name(f".{path.name}")


def choose_folder(environment: Mapping[str, str]) -> Path:
    """A folder that does not exist yet, with a path short enough for a Unix socket in it.

    It lies in the folder of the agent around this one, where there is one, so that it goes with that.
    """
    name = f"hvdrun-{secrets.token_hex(_TOKEN_BYTES)}"
    *places, last = _list_places(environment)
    for place in places:
        if len(os.fsencode(place / name)) <= _PATH_LIMIT and os.access(place, os.W_OK | os.X_OK):
            return place / name
    return last / name  # the name cannot be guessed, and making the folder fails where it exists


def remove_orphans(environment: Mapping[str, str]) -> None:
    """Remove the folders of this user's agents that were killed, where agents with this environment have theirs."""
    for path in {path for place in _list_places(environment) for path in _find(place)}:
        with contextlib.suppress(OSError):  # somebody else's, in use, or gone meanwhile
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)


def _list_places(environment: Mapping[str, str]) -> list[Path]:
    around = environment.get(SOCKET)
    inner = [] if around is None else [Path(around).parent]
    return [*inner, Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 - the last that is left


def _find(place: Path) -> Iterator[Path]:
    """What is named as an agent's folder there."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        yield from (Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name))
