"""How much memory this process may still take: what the machine has free, and what its control groups allow."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_READABLE = 10_000  # a number from here on has the next unit
_UNLIMITED = 1 << 60  # version 1 of control groups writes "no limit" as a number
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def find_shortage(needed_bytes: int, root: Path = Path("/")) -> str | None:
    """What leaves too little memory, as half a sentence; None if there is enough.

    Args:
        needed_bytes: how much is wanted.
        root: where procfs and the control groups are mounted.
    """
    free = min(_list_free(root), default=None)
    if free is None or free[0] >= needed_bytes:
        return None
    return f"{free[1]} leaves {describe(free[0])}"


def describe(size: int) -> str:
    """Bytes for a person."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < _READABLE:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _list_free(root: Path) -> Iterator[tuple[int, str]]:
    for line in _read(root / "proc" / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024, "the memory of this host"
    for group in _list_groups(root):
        for limit_file, use_file in _FILES:
            limit, use = (_read(group / name).strip() for name in (limit_file, use_file))
            if limit.isdecimal() and use.isdecimal() and int(limit) < _UNLIMITED:
                # The use includes caches, which the kernel can drop.
                yield max(0, int(limit) - int(use) + _count_reclaimable(group)), f"{limit_file} of the control group"


def _count_reclaimable(group: Path) -> int:
    """The bytes of files in a group's cache."""
    rows = (line.split() for line in _read(group / "memory.stat").splitlines())
    return sum(int(row[1]) for row in rows if row[0] in ("inactive_file", "active_file"))


def _list_groups(root: Path) -> Iterator[Path]:
    """The memory control groups of this process and those that contain them, as far as they are mounted here."""
    mounted = root / "sys" / "fs" / "cgroup"
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = mounted
        elif "memory" in controllers.split(","):
            top = mounted / "memory"
        else:
            continue
        group = top / path.lstrip("/")
        while group.is_relative_to(top):
            yield group
            if group == top:
                break
            group = group.parent


def _read(path: Path) -> str:
    with suppress(OSError):  # not in this container, or of another version
        return path.read_text(encoding="ascii", errors="replace")
    return ""
