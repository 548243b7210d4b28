"""How programs of a user who has no rights reach the tests' own Python and packages, wherever these are."""

from pathlib import Path


def find_closed(path: Path) -> Path | None:
    """The outermost folder around this path that other users may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def open_ways(mount_points: Path, *paths: Path) -> list[str]:
    """Shell lines that let every user reach paths beneath folders that are closed to them, in this namespace.

    All paths are kept at mount points before the first folder is covered: one may hide several of them.
    """
    closed = {path: folder for path in paths if (folder := find_closed(path)) is not None}
    kept = {path: mount_points / str(index) for index, path in enumerate(closed)}
    return [
        *(f"mkdir -p {place} && mount --bind {path} {place}" for path, place in kept.items()),
        *(f"mount -t tmpfs -o mode=755 tmpfs {folder}" for folder in dict.fromkeys(closed.values())),
        *(f"mkdir -p {path} && mount --bind {place} {path}" for path, place in kept.items()),
    ]
