"""`hvdrun doctor --test`: a job on the hosts that were examined measures how fast they exchange tensors.

Its workers run `worker_runtime.torch.bandwidth`, once with each backend that the hosts have.
"""

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hvdrun.hosts.findings import Finding, Host
from hvdrun.options.words import Typed
from hvdrun.spec.jobspec import JobSpec
from rendezvous.bootstrap import Backend

_PROGRAM = "worker_runtime.torch.bandwidth"
_MARK = "hvdrun-bandwidth "
_LIMIT_SECONDS = 600.0  # for one backend: 15 rounds of pairs with 0.1 Gbit/s take half of it
_SLOW_FACTOR = 3.0  # of the median
_LEAST_PAIRS = 3  # of which one may be slower than most
# The options that say where workers run and how hosts are reached, but not how many there are.
_KEPT = frozenset({
    "map_by", "bind_to", "forwarded", "directory", "prefork", "interfaces", "ssh_port", "ssh_identity_file",
    "ssh_accept_new", "python", "prefix", "rsh", "agent_prefix", "start_timeout_seconds", "lease_seconds",
    "launcher_timeout_seconds", "config_file",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hosts, or two ranks of one host, that exchanged tensors.

    names: the names of the hosts, or the ranks.
    seconds: the duration of an allreduce between them.
    latency: the duration of an allreduce of 4 bytes, in seconds.
    """

    names: tuple[str, str]
    seconds: float
    latency: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one backend.

    size: the bytes of each worker's tensor.
    workers: the number of workers.
    seconds: the duration of an allreduce over all of them.
    has_ucc: torch has UCC on these hosts.
    """

    backend: Backend
    size: int
    workers: int
    seconds: float
    pairs: tuple[Pair, ...]
    has_ucc: bool = False

    @classmethod
    def read(cls, backend: Backend, text: str) -> Self:
        """Read the measurements that the workers have printed."""
        found: dict[str, Any] = json.loads(text)
        hosts = found["hosts"]

        def name(rank: int) -> str:
            if len(set(hosts)) > 1:
                return str(hosts[rank])
            return f"rank {rank}"

        pairs = tuple(
            Pair((name(each["ranks"][0]), name(each["ranks"][1])), each["seconds"], each["latency"])
            for each in found["pairs"]
        )
        return cls(backend, found["bytes"], len(hosts), found["seconds"], pairs, found["has_ucc"])

    @property
    def slowest(self) -> Pair | None:
        """The pair that needs most time; None for a single worker."""
        return max(self.pairs, key=lambda pair: pair.seconds, default=None)

    def describe_rate(self, seconds: float) -> str:
        """The bytes of the tensor per second, as text."""
        return f"{self.size / seconds / 1e9:.2f} GB/s"

    def describe(self) -> str:
        """The measurements in one line."""
        megabytes = self.size // 1_000_000
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        what = f"all_reduce of {megabytes} MB by {self.backend}, {workers}: {self.seconds * 1000:.0f} ms"
        slowest = self.slowest
        if slowest is None:
            return what
        pair = f"{' and '.join(slowest.names)}, {slowest.seconds * 1000:.0f} ms ({self.describe_rate(slowest.seconds)})"
        if len(self.pairs) == 1:
            return f"{what}; the only pair: {pair}"
        half = self.describe_rate(statistics.median(each.seconds for each in self.pairs))
        return f"{what}; the slowest of {len(self.pairs)} pairs: {pair}; half of them reach {half}"

    def find_slow(self) -> list[Finding]:
        """The host or rank, or else the pair, that is several times as slow as the fastest quarter of the pairs."""
        if len(self.pairs) < _LEAST_PAIRS:
            return []
        in_order = sorted(self.pairs, key=lambda pair: pair.seconds)
        usual = in_order[len(in_order) // 4].seconds
        slow = [pair for pair in in_order if pair.seconds >= _SLOW_FACTOR * usual]
        if not slow:
            return []

        slowest = slow[-1]
        others = f"by {self.backend}, and other pairs {self.describe_rate(usual)}"
        one, other = slowest.names
        shared = set.intersection(*(set(pair.names) for pair in slow))
        what = f"{one} and {other} exchange {self.describe_rate(slowest.seconds)} {others}"
        if len(slow) > 1 and len(shared) == 1:
            (one,) = shared
            other = next(name for name in slowest.names if name != one)
            what = f"{one} exchanges at most {self.describe_rate(slow[0].seconds)} with {len(slow)} others {others}"
        return [Finding(what, (one, other), f"iperf3 -s, on {one}; iperf3 -c {one}, on {other}")]


def choose_backends(hosts: Mapping[str, Host], wanted: Backend | None) -> list[Backend]:
    """The backends to measure, without UCC: whether a torch has it, only that torch knows."""
    if wanted is not None:
        return [wanted]
    if hosts and all(host.facts.accelerators >= host.slots for host in hosts.values()):
        return [Backend.GLOO, Backend.NCCL]
    return [Backend.GLOO]


def make_command(typed: Sequence[Typed], spec: JobSpec, backend: Backend) -> list[str]:
    """The command line of the job that measures."""
    own = [word for option, flag, values in typed if option.dest in _KEPT for word in (flag, *values)]
    hosts = ",".join(f"{host.name}:{host.slots}" for host in spec.workers.hosts)
    where = ["-np", str(spec.workers.size), "-H", hosts]
    return ["hvdrun", *own, *where, "--no-prefix", "--backend", str(backend), "python", "-m", _PROGRAM]


def measure(words: Sequence[str]) -> Measured | Finding:
    """Run the job of this command line; return its measurements, or why it failed."""
    backend = Backend(words[words.index("--backend") + 1])
    command = [sys.executable, "-P", "-m", *words]

    try:
        ended = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Finding(f"all_reduce by {backend} did not end within {_LIMIT_SECONDS:g} s", (), shlex.join(words))

    for line in ended.stdout.splitlines():
        if line.startswith(_MARK):
            return Measured.read(backend, line.removeprefix(_MARK))

    said = [line.removeprefix("hvdrun: ") for line in ended.stderr.splitlines() if line.startswith("hvdrun: ")]
    why = f"exit code {ended.returncode}"
    if said:
        why = said[-1].rstrip(".")
    return Finding(f"all_reduce by {backend} failed: {why}", (), shlex.join(words))
