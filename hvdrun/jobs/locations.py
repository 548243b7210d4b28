"""Where the folders of detached jobs lie: on a local disk, for their owner alone.

Only there are locks and lasting files sure. If the home of a user is on a file server, the folders lie in /var/tmp. The
home then has an empty file for each job, whose name tells the machine.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvdrun.errors import LaunchError

_MOUNTS = Path("/proc/self/mountinfo")
_SPARE = Path("/var/tmp")  # noqa: S108 - it outlives a restart of the machine; the folder in it is checked
_REMOTE_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p"),
        *("lustre", "gpfs", "beegfs", "pvfs2", "orangefs", "panfs", "wekafs", "gfs2", "ocfs2"),
    }
)
_LOCAL_FUSE = "fuse.fuse-overlayfs"
_OTHERS = 0o077
_AT = "@"  # between a job and its machine in the name of a file


class FolderRefusedError(LaunchError):
    """The folder of the detached jobs cannot be used.

    Cause: It cannot be created, it belongs to another user, or others may write in it.
    Remedy: `chmod 700` it, or set `XDG_STATE_HOME` to a folder of your own on a local disk.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the folder {str(path)!r} of the detached jobs {reason}: name another with XDG_STATE_HOME.")


@dataclass(frozen=True, slots=True)
class Locations:
    """The folders in which a user's detached jobs are found.

    folders: has the folder of each job of this machine.
    names: has an empty file for each job of all machines; None where `folders` is the only place.
    """

    folders: Path
    names: Path | None = None

    def create(self) -> None:
        """Create them, for their owner alone.

        Raises:
            FolderRefusedError: that cannot be done, or another user could write there.
        """
        for path in filter(None, (self.folders, self.names)):
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                fault = find_fault(path)
            except OSError as error:
                fault = f"cannot be created ({error.strerror})"
            if fault is not None:
                raise FolderRefusedError(path, fault)

    def is_safe(self) -> bool:
        """There are folders, and no other user could have made them."""
        with suppress(OSError):  # there are none
            return find_fault(self.folders) is None
        return False

    def note(self, job: str) -> None:
        """Let the other machines know of a job of this one."""
        if self.names is not None:
            (self.names / f"{job}{_AT}{os.uname().nodename}").touch(mode=0o600)

    def forget(self, job: str) -> None:
        """Remove the note of a job of this machine."""
        if self.names is not None:
            (self.names / f"{job}{_AT}{os.uname().nodename}").unlink(missing_ok=True)

    def list_elsewhere(self) -> Iterator[tuple[str, str, float]]:
        """The jobs of other machines: name, machine, and when it began, in seconds since 1970."""
        if self.names is None:
            return
        with suppress(OSError):  # there are none
            for entry in os.scandir(self.names):
                job, at, machine = entry.name.partition(_AT)
                if at and machine != os.uname().nodename:
                    yield job, machine, entry.stat().st_mtime


def find_locations(environment: Mapping[str, str]) -> Locations:
    """Where the detached jobs of the user with this environment are; a folder that XDG_STATE_HOME names is kept to."""
    spare = _SPARE / f"hvdrun-{os.geteuid()}"
    state = environment.get("XDG_STATE_HOME", "")
    is_asked = state.startswith("/")  # the specification: others are ignored
    if not is_asked:
        home = environment.get("HOME", "")
        if not home.startswith("/"):
            return Locations(spare)
        state = f"{home}/.local/state"
    own = Path(state) / "hvdrun"
    if not (is_asked or _may_create(own)):
        return Locations(spare)
    if is_local(own):
        return Locations(own)
    return Locations(spare, own)


def find_fault(path: Path) -> str | None:
    """Why a folder is not safe, as the end of a sentence about it; None where it is.

    Raises:
        OSError: there is no such folder.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if status.st_mode & _OTHERS:
        return "is open to other users (chmod 700)"
    return None


def is_local(path: Path) -> bool:
    """Whether a path is on a disk of this machine, as far as its mounts tell."""
    kind, longest = "", -1
    resolved = os.path.realpath(path)
    with suppress(OSError):  # a system without this table
        for line in _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            point = before.split()[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
            if len(point) >= longest and f"{resolved}/".startswith(f"{point.rstrip('/')}/"):
                kind, longest = after.split()[0], len(point)
    return kind not in _REMOTE_FILE_SYSTEMS and (not kind.startswith("fuse") or kind == _LOCAL_FUSE)


def _may_create(path: Path) -> bool:
    """This user may create it: the first folder above it that exists is open to that."""
    for place in (path, *path.parents):
        if os.path.lexists(place):
            return os.access(place, os.W_OK | os.X_OK)
    return False
