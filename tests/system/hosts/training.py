"""A job that trains on the hosts of a lab, as a test follows it: who trains, who was interrupted when, what counted."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.house.sources import ROOT
from tests.lab.host import Host
from tests.lab.process import HostProcess
from tests.system.hosts.cluster import Cluster
from tests.system.launcher import PRELOAD, Running
from tests.system.recording import Recording, Step, read_notes
from tests.system.recovery_scripts.recipe import SAMPLES, Recipe
from tests.system.replay import TOLERANCE, find_distance
from tests.waiting import wait_until

SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "on_host.py"
LEASE_SECONDS = 2.0
LIMIT_SECONDS = 60.0  # for a worker to be started and taken in: each imports torch, some at the same time
LOST = 75
FEATURES = "clip,norm,sparse"
_INTERRUPTED = "interrupted: "
_SSHD = "sshd"


class Training:
    """An elastic job of one worker on each host, which trains until it is ordered to stop.

    notes: the folder where the workers write; see `tests/system/recovery_scripts/on_host.py`.
    """

    def __init__(self, cluster: Cluster, *hosts: str, options: Iterable[str] = ()) -> None:
        self.notes = cluster.directory / "notes"
        self.notes.mkdir()
        self._cluster = cluster
        cluster.name_hosts(*(f"{host}:1" for host in hosts))
        words = ("--min-np", "1", "--host-discovery-script", "cat hosts")
        limits = ("--lease", f"{LEASE_SECONDS:g}s", "--launcher-timeout", f"{LEASE_SECONDS:g}s")
        script = ("python", SCRIPT, self.notes, FEATURES, "--until", self.notes / "stop", "--every", "1")
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(cluster.directory / "inductor"), "PYTHONPATH": str(PRELOAD)}
        forwarding = [word for name in variables for word in ("-x", name)]
        self.running: Running = cluster.start(
            "-np", str(len(hosts)), *words, *limits, *options, *forwarding, *script, environment=variables, forks=True
        )
        self.await_members(*hosts)

    def await_members(self, *hosts: str) -> None:
        """Wait until the workers of these hosts, and no others, make a step together."""
        began = time.monotonic()

        def is_so() -> bool:
            last = {note["host"]: note for note in self._read(began) if note["what"] == "step"}
            groups = {host: (step["entry"], len(step["members"][0])) for host, step in last.items()}
            # A host that is lost may still note its last step with the others.
            newest = groups[max(last, key=lambda host: last[host]["at"])] if last else ("", 0)
            return newest[1] == len(hosts) and {host for host in last if groups[host] == newest} == set(hosts)

        self._wait_until(is_so, f"{', '.join(hosts)} to train together")

    def lose(
        self, host: str, fault: Callable[[Host], None], *others: str, parts: Sequence[HostProcess] | None = None
    ) -> None:
        """Let something happen to a host: the others continue by themselves, and its part of the job ends itself.

        parts: what is to end; all there is, if none are named. On a host that is destroyed nothing is looked for.
        """
        parts = self.list_parts(host) if parts is None else parts
        before = len(self.running.stderr.text())
        began = time.monotonic()
        fault(self._cluster[host])
        self._wait_until(lambda: set(others) <= self.find_interrupted(began), "the others to be interrupted")
        self.await_members(*others)
        # hvdrun says it of a job that has continued already: its line may come later than the next step.
        continuation = f"hvdrun: the job continues with {len(others)} worker"
        self._wait_until(lambda: continuation in self.running.stderr.text()[before:], continuation)
        said = self.running.stderr.text()[before:]
        assert re.search(rf"^hvdrun: .*\b{host}\b.* was lost: ", said, re.MULTILINE), said
        if self._cluster[host].is_up:
            self.await_gone(parts, host)

    def find_interrupted(self, since: float) -> set[str]:
        """The hosts whose workers were interrupted after that time."""
        notes = (note for note in self._read(since) if note["what"] == "recovery")
        return {note["host"] for note in notes if note["text"].startswith(_INTERRUPTED)}

    def be_busy(self, host: str, seconds: float) -> None:
        """Have the host's worker hold its interpreter's lock for so long, and continue; no worker is lost by it."""
        since = time.monotonic()
        wish = f"busy-{host}"
        self._cluster.write(wish, str(seconds)).replace(self.notes / wish)
        self._wait_until(lambda: self._has_noted(host, "idle", since), f"{host} to have been busy")
        idle = next(note["at"] for note in self._read(since) if note["what"] == "idle")
        self._wait_until(lambda: self._has_noted(host, "step", idle), f"{host} to continue")
        assert not self.find_interrupted(since)

    def find_worker(self, host: str) -> HostProcess:
        """The worker on a host that trains now."""
        newest = [note for note in self._read(0) if note["host"] == host and note["what"] == "step"][-1]
        (found,) = [process for process in self.list_parts(host) if process.pid_on_host == newest["pid"]]
        return found

    def list_parts(self, host: str) -> list[HostProcess]:
        """All processes of the job on a host."""
        return [process for process in self._cluster[host].processes() if not process.program.startswith(_SSHD)]

    def await_gone(self, parts: Iterable[HostProcess], host: str) -> None:
        """Wait until none of these processes is left on the host."""
        pids = {process.pid for process in parts}
        self._wait_until(lambda: not pids & {part.pid for part in self.list_parts(host)}, f"{host}'s part to end")

    def await_line(self, text: str) -> None:
        """Wait until hvdrun has said this."""
        self.running.stderr.wait_for(re.escape(text), LIMIT_SECONDS)

    def end(self, *hosts: str) -> list[Step]:
        """Let the training come to its end on these hosts; the steps that count.

        All have the same parameters then, to the last bit, and one process comes to them with these steps; each sample
        was used once in an epoch.
        """
        (self.notes / "stop").touch()
        finished = self.running.wait(LIMIT_SECONDS)
        assert finished.returncode == 0, finished.stderr
        assert sorted(note["host"] for note in self._read(0) if note["what"] == "done") == sorted(hosts)
        recording = Recording(self.notes)
        recording.check_replicas()
        recording.check_samples(SAMPLES)
        steps = recording.list_steps()
        assert find_distance(Recipe(FEATURES), steps, torch.load(recording.find_parameters())) < TOLERANCE
        return steps

    def _has_noted(self, host: str, what: str, since: float) -> bool:
        return any(note["host"] == host and note["what"] == what for note in self._read(since))

    def _read(self, since: float) -> list[dict[str, Any]]:
        """What was written down after this time, each with its host."""
        notes = [note for note in read_notes(self.notes) if note["at"] > since]
        return [{**note, "host": Path(note["path"]).parent.name.rsplit("-", 2)[0]} for note in notes]

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what, LIMIT_SECONDS)
        except AssertionError:
            parts = "\n".join(
                f"{host.name}: {part}"
                for host in self._cluster.lab
                if host.is_up
                for part in self.list_parts(host.name)
            )
            raise AssertionError(f"waited for {what}\n{self.running.stderr.text()}\n{parts}") from None
