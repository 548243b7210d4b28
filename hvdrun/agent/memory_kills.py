"""Whether the kernel has killed a process of the job because memory ran out: its count in the agent's memory cgroup.

The workers are in the cgroup of their agent. The kernel counts a process before it kills it, so that the count is there
when the worker is reaped. Without such a cgroup the resident sizes tell what is probable.
"""

import resource
import signal
from pathlib import Path

from rendezvous.core.outcome import find_signal

_COUNT = "oom_kill"
_PROBABLE_SHARE = 0.8  # of the machine's memory
_UNLIMITED = 1 << 60  # bytes; version 1 of cgroups writes "no limit" as a number
_GIB = 1 << 30


class MemoryKills:
    """Explains the ends of workers by what the kernel counts on this host.

    Args:
        root: where /proc and /sys are; a test has its own.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cgroup = next((each for each in self._list_cgroups() if _read_count(each) is not None), None)
        self._known = self._count()  # those that no end was explained by
        self._explained = 0

    @property
    def has_count(self) -> bool:
        """The kernel counts for a memory cgroup of this host."""
        return self._cgroup is not None

    def explain(self, returncode: int, peak_bytes: int) -> str:
        """What is known of this end, in whole sentences; "" for nothing.

        Args:
            returncode: as waitpid returns it.
            peak_bytes: how much memory the worker has had resident at most; 0 while it lives.
        """
        is_killed = find_signal(returncode) == signal.SIGKILL
        if not returncode:
            return ""
        if self._cgroup is None:
            return self._guess(peak_bytes) if is_killed else ""

        kills = self._count() - self._known
        if kills > self._explained:
            self._explained += 1
            victim = "it" if is_killed else "a process of this job on its host"
            return f"The kernel killed {victim} because memory ran out: {self._describe(kills)}."

        if is_killed:
            return (
                f"The kernel did not kill it for memory ({_COUNT} of its memory cgroup has not grown): "
                f"{_describe_other_causes()}."
            )
        return ""

    def _describe(self, kills: int) -> str:
        assert self._cgroup is not None  # noqa: S101 - its caller has looked
        name = f"/{self._cgroup.parent.relative_to(self._root)}"
        limit_bytes = _read_limit(self._cgroup.parent)
        limit = "" if limit_bytes is None else f", limit {limit_bytes / _GIB:.2f} GiB"
        return f"{_COUNT} of its memory cgroup has grown by {kills} since the agent began ({name}{limit})"

    def _guess(self, peak_bytes: int) -> str:
        total_bytes = _read_total(self._root / "proc" / "meminfo")
        if not total_bytes or peak_bytes < _PROBABLE_SHARE * total_bytes:
            return ""
        sizes = f"{peak_bytes / _GIB:.1f} of this host's {total_bytes / _GIB:.1f} GiB"
        return f"Probably the kernel killed it because memory ran out: it had {sizes} resident."

    def _count(self) -> int:
        return 0 if self._cgroup is None else _read_count(self._cgroup) or 0

    def _list_cgroups(self) -> list[Path]:
        """The files that may have the count: of version 2, of version 1, and of a container's own root."""
        mounted = self._root / "sys" / "fs" / "cgroup"
        files = []
        for line in _read(self._root / "proc" / "self" / "cgroup").splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0":
                files += [mounted / path.lstrip("/") / "memory.events", mounted / "memory.events"]
            elif "memory" in controllers.split(","):
                first_version = mounted / "memory"
                files += [first_version / path.lstrip("/") / "memory.oom_control", first_version / "memory.oom_control"]
        return files


def _describe_other_causes() -> str:
    """Half a sentence: what else sends SIGKILL. The workers have the limits of their agent."""
    others = (
        "the script itself or another process sent this signal, such as kill -9, a scheduler, or a program that ends "
        "others before memory runs out"
    )
    _, seconds = resource.getrlimit(resource.RLIMIT_CPU)
    if seconds == resource.RLIM_INFINITY:
        return others
    return f"it reached its limit of {seconds} s of processor time (ulimit -t), or {others}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_count(file: Path) -> int | None:
    """The number after the name; None where the file has none."""
    words = dict(line.split(maxsplit=1) for line in _read(file).splitlines() if " " in line)
    return int(words[_COUNT]) if words.get(_COUNT, "").isdigit() else None


def _read_limit(cgroup: Path) -> int | None:
    """The limit of a memory cgroup in bytes; None where it has none of its own."""
    text = (_read(cgroup / "memory.max") or _read(cgroup / "memory.limit_in_bytes")).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _read_total(meminfo: Path) -> int:
    words = dict(line.split(":", 1) for line in _read(meminfo).splitlines() if ":" in line)
    return int(words.get("MemTotal", "0").split()[0]) * 1024
