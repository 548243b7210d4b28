"""A job of two workers on each host of a lab, as a test follows it: its steps, and who makes them."""

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.house.sources import ROOT
from tests.lab.process import HostProcess
from tests.system.hosts.cluster import Cluster
from tests.system.launcher import Running
from tests.system.recovery_scripts import endure
from tests.waiting import wait_until

FAULTS = int(os.environ.get("HVDRUN_SOAK_FAULTS", "1"))
IS_SOAK = "HVDRUN_SOAK_FAULTS" in os.environ
HOSTS, SLOTS = (4 if IS_SOAK else 2), 2
WORKERS = HOSTS * SLOTS
LEASE_SECONDS = 2.0
STEP_SECONDS = 0.1
LIMIT_SECONDS = 90.0  # for all workers to train together
_RECENT_SECONDS = 5.0  # a worker without a step since then does not train
_TAIL_BYTES = 200  # hold a line and more
SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "endure.py"
WORDS = (
    *("-np", str(WORKERS), "--min-np", "1", "--lease", f"{LEASE_SECONDS:g}s", "--launcher-timeout", "2s"),
    *("-H", ",".join(f"host{number}:{SLOTS}" for number in range(1, HOSTS + 1))),
    *("--blacklist-cooldown-range", "1", "5"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """When a step has ended, and how many took part in it."""

    at: float
    number: int
    size: int

    @classmethod
    def parse(cls, line: str) -> "Step":
        """Read what `endure.py` writes."""
        at, number, size = line.split()
        return cls(float(at), int(number), int(size))


class Endurance:
    """The job, and what its workers write.

    Args:
        cluster: where it runs.
        is_detached: it runs without a terminal, and `hvdrun attach` is what the test sees of it.
    """

    def __init__(self, cluster: Cluster, *, is_detached: bool = False) -> None:
        self.cluster = cluster
        self._folder = cluster.directory / "steps"
        self._folder.mkdir()
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(cluster.directory / "inductor")}
        script = ("python", SCRIPT, self._folder, str(STEP_SECONDS))
        words: tuple[str | Path, ...] = (*WORDS, "-x", *caches, *script)
        if is_detached:
            started = cluster.start("--detach", *words, environment=caches, forks=True).wait(LIMIT_SECONDS)
            attach = ["hvdrun", "attach", started.stdout.strip()]
            self.running: Running = cluster.start_on(cluster.lab.launcher, attach)
        else:
            self.running = cluster.start(*words, environment=caches, forks=True)

    def list_steps(self) -> list[Step]:
        """All steps as the first of their ranks ended them, in that order; one that was made again comes again."""
        first: dict[tuple[int, int], Step] = {}
        for path in self._folder.glob("*.steps"):
            times = Counter[int]()
            for step in map(Step.parse, path.read_text(encoding="ascii").splitlines()):
                times[step.number] += 1
                key = step.number, times[step.number]
                first[key] = min(first.get(key, step), step, key=lambda one: one.at)
        return sorted(first.values(), key=lambda step: step.at)

    def await_all(self) -> None:
        """Wait until all workers train together."""
        began = time.monotonic()
        wait_until(lambda: len(self._find_training(began, WORKERS)) == WORKERS, limit_seconds=LIMIT_SECONDS)

    def list_workers(self) -> list[tuple[str, HostProcess]]:
        """The workers that train now, with their hosts."""
        names = self._find_training(time.monotonic() - _RECENT_SECONDS)
        return [
            (host.name, process)
            for host in self.cluster.lab
            for process in host.processes()
            if f"{host.name}-{process.pid_on_host}" in names
        ]

    def end(self) -> str:
        """Let the training come to its end; what it has to say."""
        (self._folder / endure.STOP).touch()
        finished = self.running.wait(LIMIT_SECONDS)
        assert finished.returncode == 0, finished.stderr
        return (self._folder / endure.END).read_text(encoding="ascii")

    def _find_training(self, since: float, size: int | None = None) -> set[str]:
        """The hosts and pids of the workers that have ended a step since then; with a size, of so many."""
        last = {path.name.rpartition("-")[0]: _read_last(path) for path in self._folder.glob("*.steps")}
        return {name for name, step in last.items() if step and step.at > since and (size is None or step.size == size)}


def _read_last(path: Path) -> Step | None:
    """The last whole line; of a file that has only just begun, none."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("ascii").split("\n")[1:-1]  # the first may be cut, as the last
    return Step.parse(lines[-1]) if lines else None
