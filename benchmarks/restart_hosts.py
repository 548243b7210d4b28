"""The row of `restart.py` with two hosts: one job over SSH, many kills, and what they leave behind.

The hosts are network namespaces of this machine, each with an OpenSSH server, its own processes, /tmp and /dev/shm: the
lab of the tests, which needs root. So all clocks are one. Rank 0 is on the first host, ranks 1 and 2 on the second.
"""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from restart_notes import SIZE, read_complete, read_restarts

# The program starts in this folder; the lab is the tests'.
sys.path.append(str(Path(__file__).parent.parent))

from tests.lab.lab import Lab
from tests.lab.requirements import find_missing
from tests.system.hosts.cluster import Cluster
from tests.system.hosts.roles import find_agents

MEGABYTE = 1e6
TITLE = "on two hosts over SSH"
TARGET_SECONDS = 1.0
FIRST_LOOK = 3  # kills; until then each process has done everything once
_SETTLING_SECONDS = 0.2  # of a life that is complete; the last one takes a second
_PAUSE_SECONDS = 0.05
_HOSTS = "host1:1,host2:2"
_FORKSERVER = "worker_runtime.startup.forkserver"


@dataclass(frozen=True, slots=True)
class Size:
    """What a process has in use: resident memory, and open files with sockets and pipes."""

    resident_bytes: int
    files: int

    def __str__(self) -> str:
        return f"{self.resident_bytes / MEGABYTE:.1f} MB, {self.files} open"

    def grown_from(self, early: "Size") -> str:
        """The growth since then, as text."""
        grown = (self.resident_bytes - early.resident_bytes) / MEGABYTE
        return f"{grown:+.1f} MB, {self.files - early.files:+d} open"


Sizes = Mapping[str, Size]


@dataclass(frozen=True, slots=True)
class Look:
    """What the job has on all hosts while it runs.

    sizes: by the process's part and host.
    traces: its processes, listening sockets, and files in /tmp and /dev/shm.
    """

    sizes: Sizes
    traces: int


@dataclass(frozen=True, slots=True)
class HostsResult:
    """One job.

    early: after a few kills; None if the job did not come so far, or ended meanwhile.
    late: after the last one.
    left: what the job has left behind on any host.
    """

    seconds: Sequence[float]
    early: Look | None
    late: Look | None
    left: Sequence[str]
    returncode: int

    def describe(self, kills: int) -> list[str]:
        """Rows that tell how memory and open files have grown, and what is left."""
        rows = [f"| | after kill {min(FIRST_LOOK, kills)} | after kill {kills} | growth |", "|---|---|---|---|"]
        if self.early is not None and self.late is not None:
            for name, early in self.early.sizes.items():
                late = self.late.sizes.get(name)
                rows.append(
                    f"| {name} | {early} | {'gone' if late is None else f'{late} | {late.grown_from(early)}'} |"
                )
            traces = self.early.traces, self.late.traces
            rows.append(f"| processes, listeners, files | {traces[0]} | {traces[1]} | {traces[1] - traces[0]:+d} |")
        left = "; ".join(self.left) or "nothing: no process, no listening socket, no file in /tmp or /dev/shm"
        return [*rows, "", f"left behind on the hosts after {kills} kills: {left}", f"exit code: {self.returncode}"]

    def list_missed(self, kills: int) -> list[str]:
        """The targets that this job has missed."""
        is_met = len(self.seconds) == kills and statistics.median(self.seconds) <= TARGET_SECONDS
        missed = [] if is_met else [f"hosts: all back, in {TARGET_SECONDS:g} s (median)"]
        return missed + (["hosts: nothing is left behind"] if self.left or self.returncode else [])

    def to_json(self) -> dict[str, object]:
        """As it is written to a file."""
        return asdict(self)


def find_obstacle() -> str | None:
    """Why there can be no lab on this machine."""
    return find_missing()


def run_hosts(script: Path, kills: int, seconds: float) -> HostsResult:
    """One job on two hosts, whose worker is killed so often."""
    threads = {"OMP_NUM_THREADS": "1"}
    with Lab(2) as lab:
        cluster = Cluster(lab)
        words = ["python", script, "blocked", str(kills), str(seconds)]
        options = ["-np", str(SIZE), "-H", _HOSTS, "--max-restarts", str(kills), "-x", *threads]
        job = cluster.start(*options, *words, environment=threads, forks=True)
        deadline = time.monotonic() + 30.0 + kills * (seconds + 10.0)

        def look_after(number: int) -> Look | None:
            while number not in read_complete(cluster.directory):
                if not job.is_running or time.monotonic() > deadline:
                    return None
                time.sleep(_PAUSE_SECONDS)
            time.sleep(_SETTLING_SECONDS)
            try:
                return Look(_measure(cluster, job.pid), len(cluster.find_left()))
            except psutil.NoSuchProcess:  # the job has ended meanwhile
                return None

        try:
            early = look_after(min(FIRST_LOOK, kills))
            late = look_after(kills)
            finished = job.wait(max(30.0, deadline - time.monotonic()))
        finally:
            cluster.close()
        left = cluster.settle()
        return HostsResult(read_restarts(cluster.directory, kills), early, late, left, finished.returncode)


def _measure(cluster: Cluster, launcher: int) -> Sizes:
    """The launcher, and on each host the agent and the forkserver, by their parts and hosts."""
    found = {"launcher": psutil.Process(launcher)}
    for host in cluster.lab:
        for agent in (psutil.Process(each.pid) for each in find_agents(host)):
            found[f"agent on {host.name}"] = agent
            # A worker has that on its command line too, until its own program begins.
            forkservers = [child for child in agent.children() if _FORKSERVER in child.cmdline()]
            found |= {f"forkserver on {host.name}": each for each in sorted(forkservers, key=_get_start)[:1]}
    return {name: Size(process.memory_info().rss, process.num_fds()) for name, process in found.items()}


def _get_start(process: psutil.Process) -> float:
    return process.create_time()
