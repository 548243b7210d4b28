"""Whether the limits of this machine allow so many workers; the agent refuses the first launch where they do not.

The limits of files and processes count. Memory does not, since nobody knows how much a worker needs.
"""

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from hvdrun.processes.scarcity import THREADS
from hvdrun.spec.slurm_lists import expand_counts, expand_hosts

FILES_PER_WORKER = 3  # of the agent: the worker's output and errors, and the memory of its snapshots
_SPARE_FILES = 64  # that the agent has open, or needs to look at processes
_TASKS_FIELD = 3  # of /proc/loadavg: "running/all" of the machine's processes and threads
_THREADS_FIELD = 17  # of /proc/PID/stat, behind the name in parentheses
_LIMITS = ("kernel/pid_max", "kernel/threads-max")


class ResourceLimits:
    """The limits of this machine.

    Args:
        proc: where procfs is mounted.
        groups: where the control groups are.
    """

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._groups = groups

    def find_shortage(self, workers: int) -> str | None:
        """Half a sentence: which limit is too low for so many workers, and what to do; None when none is."""
        need = "worker needs" if workers == 1 else "workers need"
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        needed = FILES_PER_WORKER * workers + _SPARE_FILES
        if files != resource.RLIM_INFINITY and needed > files:
            return f"{workers} {need} {needed} open files, but `ulimit -Hn` is {files}; raise it, or use fewer"
        for free, limit in self._free():
            if workers + THREADS > free:
                return (
                    f"{workers} {need} {workers + THREADS} processes and threads, those of the agent included, but "
                    f"{limit} leaves {free}; raise it, or use fewer"
                )
        return None

    def count_startable(self) -> int | None:
        """How many more processes this user may start; None for no limit."""
        return min((free for free, _ in self._free()), default=None)

    def _free(self) -> list[tuple[int, str]]:
        """How many more processes each limit allows."""
        found = []
        tasks = self._count_tasks()
        for name in _LIMITS:
            most = _read_number(self._proc / "sys" / name)
            if most is not None:
                found.append((max(0, most - tasks), name.replace("/", ".")))
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        # Root is not bound by it.
        if os.geteuid() != 0 and most != resource.RLIM_INFINITY:
            found.append((max(0, most - self._count_own()), "`ulimit -u`"))
        for group in self._list_groups():
            most, now = (_read_number(group / name) for name in ("pids.max", "pids.current"))
            if most is not None and now is not None:
                found.append((max(0, most - now), "pids.max of the control group"))
        return found

    def _list_groups(self) -> Iterator[Path]:
        """The folders of this process's control groups that may limit processes, and of those above."""
        yield self._groups  # of a container
        with contextlib.suppress(OSError):  # without procfs there is nothing to look for
            for line in (self._proc / "self" / "cgroup").read_text(errors="surrogateescape").splitlines():
                _, controllers, path = line.split(":", 2)
                if not controllers or "pids" in controllers.split(","):
                    if controllers:
                        top = self._groups / "pids"
                    else:
                        top = self._groups
                    group = top / path.lstrip("/")
                    yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))

    def _count_own(self) -> int:
        """The processes and threads of this user, which the limit counts."""
        count = 0
        for entry in os.scandir(self._proc):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile, or is no process
                if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                    count += int(Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[_THREADS_FIELD])
        return count

    def _count_tasks(self) -> int:
        try:
            return int((self._proc / "loadavg").read_text().split()[_TASKS_FIELD].partition("/")[2])
        except (OSError, ValueError, IndexError):
            return 0


def find_missing_cpus(environment: Mapping[str, str], usable: int) -> str | None:
    """A warning where this process may use fewer CPUs than the Slurm job has on this host; None where it may use all.

    usable: how many it may use.
    """
    if "SLURM_JOB_ID" not in environment:
        return None

    here = environment.get("SLURMD_NODENAME")
    try:
        hosts = expand_hosts(environment.get("SLURM_JOB_NODELIST", ""))
        counts = expand_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    except ValueError:
        return None

    held = dict(zip(hosts, counts, strict=False)).get(here or "", 0)
    # A configuration may claim more than there are.
    if usable >= min(held, os.cpu_count() or held):
        return None
    return (
        f"the workers on {here} may use {usable} of the {held} CPUs that Slurm job {environment.get('SLURM_JOB_ID')} "
        "has there: start hvdrun from the batch script, not inside a step of srun, or look at TaskPlugin in slurm.conf."
    )


def _read_number(path: Path) -> int | None:
    """The number in a file; None where there is none (`max`, or no such file)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
