"""How programs of a user who has no rights reach the tests' own Python and packages, wherever these are."""

from pathlib import Path


def find_closed(path: Path) -> Path | None:
    """The outermost folder around this path that other users may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def open_way(path: Path, mount_point: Path) -> list[str]:
    """Shell lines that let every user reach a path beneath a folder that is closed to them, in this namespace."""
    closed = find_closed(path)
    if closed is None:
        return []
    return [
        f"mkdir -p {mount_point}",
        f"mount --bind {path} {mount_point}",
        f"mount -t tmpfs -o mode=755 tmpfs {closed}",
        f"mkdir -p {path}",
        f"mount --bind {mount_point} {path}",
    ]
