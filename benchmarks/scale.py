"""What hvdrun costs with many hosts, which are simulated on this machine: the real core, server, wire and sequencer.

    .venv/bin/python benchmarks/scale.py

- Agents call over real mutual TLS, each with its own certificate and connection, from two processes that share the
  processors with the server. They join with 8 workers each, a generation is published, one host is lost, the others
  are notified, and form the next generation. The largest number also joins with a journal, as in a detached job.
- Many more agents use the same messages and the same core without sockets, to measure how time, memory and bytes grow
  with the hosts. The exponent is the slope of a line through their logarithms: 1 is linear.
- The sequencer serves 64 and 256 ranks that submit the 50 buckets of a step, and 64 ranks that form their group.
- Agents are started over ssh on a network with a round trip of 200 ms.

Each figure over TLS is the best of `--runs`, since other programs only add to it. The result is also written to
benchmarks/scale.json. A thousand agents that share two processors may miss a short lease, which real ones do not; hence
`--lease`.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import scale_codec
import scale_forming
import scale_sequencer
import scale_ssh
import scale_tls
from tables import describe_machine

P = ParamSpec("P")
T = TypeVar("T")

RESULT = Path(__file__).with_suffix(".json")
BUCKETS = 50
MOST_LINEAR = 1.1  # an exponent that still counts as linear: caches do not grow with the hosts
MOST_JOURNALED = 1.2  # times as long may a job's hosts take to join where it has a journal
MB = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; target: "" if none applies to this number of hosts."""

    what: str
    figure: str
    target: str = ""
    is_met: bool = True

    def __str__(self) -> str:
        held = "" if not self.target else "met" if self.is_met else "missed"
        return f"| {self.what} | {self.figure} | {self.target} | {held} |"


def alone(measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call this in a new process, so that its memory is that of this call alone."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, *args, **kwargs).result()


def describe_tls(figures: scale_tls.Figures, target_hosts: int) -> list[Row]:
    """What agents over TLS have cost."""
    who = f"{figures.hosts:,} agents over mutual TLS"
    is_target = figures.hosts == target_hosts
    server, agents = figures.server_cpu_seconds, figures.agents_cpu_seconds
    return [
        Row(
            f"{who}, {figures.workers:,} workers join, one generation is published",
            f"{figures.join_seconds:.2f} s (processor: server {server:.2f} s, agents {agents:.2f} s; "
            f"{figures.retries:,} calls repeated)",
            "<= 5 s" if is_target else "",
            figures.join_seconds <= 5.0,  # noqa: PLR2004 - the target, in seconds
        ),
        Row(
            f"{who}: one host is lost, all others are told",
            f"{figures.loss_seconds:.3f} s",
            "<= 1 s" if is_target else "",
            figures.loss_seconds <= 1.0,
        ),
        Row(f"{who}: the survivors form the next generation", f"{figures.next_seconds:.2f} s"),
        Row(
            f"{who}: the server",
            f"{figures.memory_bytes / MB:.0f} MB, {figures.memory_bytes / figures.hosts / 1e3:.0f} KB per host; "
            f"{figures.idle_share:.0%} of a processor while nothing happens",
        ),
    ]


def describe_journal(without: scale_tls.Figures, journaled: scale_tls.Figures) -> Row:
    """What it costs that each decision is on the disk before anybody learns of it."""
    ratio = journaled.join_seconds / without.join_seconds
    return Row(
        f"{journaled.hosts:,} agents over mutual TLS join with a journal, as in a detached job",
        f"{journaled.join_seconds:.2f} s, and {without.join_seconds:.2f} s without: {ratio:.2f} times as long",
        f"<= {MOST_JOURNALED} x",
        ratio <= MOST_JOURNALED,
    )


def describe_codec(every: Sequence[scale_codec.Figures], slots: int) -> list[Row]:
    """The cost of the messages and the core, and its growth."""
    rows = [
        Row(
            f"{figures.hosts:,} agents without sockets, {slots * figures.hosts:,} workers",
            f"{sum(figures.seconds.values()):.2f} s, {figures.memory_bytes / MB:.0f} MB, "
            f"{sum(figures.sent.values()) / MB:.1f} MB sent, {sum(figures.received.values()) / MB:.1f} MB received",
            "<= 60 s" if figures is every[-1] else "",
            sum(figures.seconds.values()) <= 60.0,  # noqa: PLR2004 - the target, in seconds
        )
        for figures in every
    ]
    measures: dict[str, Callable[[scale_codec.Figures], float]] = {
        "seconds": lambda figures: sum(figures.seconds.values()),
        "memory": lambda figures: figures.memory_bytes,
        "bytes sent": lambda figures: sum(figures.sent.values()),
        "bytes received": lambda figures: sum(figures.received.values()),
    }
    hosts = [figures.hosts for figures in every]
    for name, measure in measures.items() if len(every) > 1 else ():
        exponent, each = fit(hosts, [measure(figures) for figures in every])
        unit = f"{each * 1e3:.2f} ms" if name == "seconds" else f"{each / 1e3:.2f} KB"
        target = "" if name == "seconds" else "linear"
        rows.append(
            Row(
                f"{name} over hosts", f"hosts^{exponent:.2f}, {unit} per host at the most", target,
                exponent <= MOST_LINEAR,
            )
        )  # fmt: skip
    return rows


def fit(hosts: Sequence[int], costs: Sequence[float]) -> tuple[float, float]:
    """The exponent of a cost's growth (least squares over the logarithms), and cost per host at the largest size."""
    x, y = [math.log(count) for count in hosts], [math.log(cost) for cost in costs]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle_x) ** 2 for a in x
    )
    return slope, costs[-1] / hosts[-1]


def describe_sequencer(step: scale_sequencer.Step) -> Row:
    """What the buckets of a step cost."""
    how = "at once" if step.at_once else "one after the other"
    return Row(
        f"sequencer: {step.ranks} ranks ask for {step.buckets} buckets, {how}",
        f"{step.seconds * 1e3:.1f} ms (processor: sequencer {step.own_cpu_seconds * 1e3:.1f} ms, "
        f"ranks {step.clients_cpu_seconds * 1e3:.1f} ms)",
    )


def describe_forming(forming: scale_forming.Forming) -> Row:
    """The cost of a group before its first operation."""
    return Row(
        f"forming at {forming.ranks} ranks: from the published generation until all have the addresses of all",
        f"{forming.found_seconds * 1e3:.0f} ms, and {forming.compared_seconds * 1e3:.0f} ms to compare their "
        f"connections (processor: sequencer {forming.own_cpu_seconds * 1e3:.0f} ms, "
        f"ranks {forming.clients_cpu_seconds * 1e3:.0f} ms)",
    )


def describe_ssh(hosts: int, one: float, many: float) -> Row:
    """What a slow network costs."""
    return Row(
        f"{hosts} agents over ssh, {scale_ssh.ROUND_TRIP_SECONDS * 1e3:.0f} ms there and back (pretended)",
        f"{many:.2f} s; one takes {one:.2f} s: {many / one:.2f} times as long",
        "<= 3 x one",
        many <= 3 * one,
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 300, 1000], help="agents over TLS")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 2000, 5000, 10_000], help="without sockets")
    parser.add_argument("--slots", type=int, default=8, help="workers of a host (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256], help="of a sequencer")
    parser.add_argument("--forming", type=int, nargs="+", default=[64], help="ranks that form a group")
    parser.add_argument("--ssh", type=int, default=100, help="hosts over ssh (default: %(default)s)")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds (default: %(default)g)")
    parser.add_argument("--runs", type=int, default=3, help="of which the best counts (default: %(default)s)")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="with the journal")
    parser.add_argument("--processes", type=int, default=2, help="that hold the agents (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RESULT, metavar="FILE", help="default: %(default)s")
    return parser.parse_args()


def main() -> int:
    """Measure, print and write; return 1 if a target is missed."""
    options = parse_arguments()
    machine = describe_machine()
    rows: list[Row] = []
    print(f"{machine}\n\n| what | figure | target | |\n|---|---|---|---|", flush=True)

    def show(*more: Row) -> None:
        rows.extend(more)
        print(*more, sep="\n", flush=True)

    def measure_tls(hosts: int, *disks: Path | None) -> list[scale_tls.Figures]:
        runs = [
            [alone(scale_tls.measure, hosts, options.slots, options.lease, options.processes, disk) for disk in disks]
            for _ in range(options.runs)
        ]
        return [min(each, key=lambda figures: figures.join_seconds) for each in zip(*runs, strict=True)]

    tls = []
    for hosts in options.hosts:
        tls += measure_tls(hosts, None)
        show(*describe_tls(tls[-1], max(options.hosts)))
    journaled = measure_tls(max(options.hosts), None, options.disk)
    show(describe_journal(*journaled))
    codec = [alone(scale_codec.measure, size, options.slots) for size in options.sizes]
    show(*describe_codec(codec, options.slots))
    steps = [
        scale_sequencer.measure(ranks, BUCKETS, 10 * options.runs, at_once=at_once)
        for ranks in options.ranks
        for at_once in (True, False)
    ]
    show(*map(describe_sequencer, steps))
    forming = [
        min((scale_forming.measure(ranks) for _ in range(options.runs)), key=lambda figures: figures.found_seconds)
        for ranks in options.forming
    ]
    show(*map(describe_forming, forming))
    show(describe_ssh(options.ssh, scale_ssh.measure(1), scale_ssh.measure(options.ssh)))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"\nload after: {load}")
    figures = {
        "machine": f"{machine}; load after {load}",
        "tls": [asdict(each) for each in tls],
        "journaled": [asdict(each) for each in journaled],
        "codec": [asdict(each) for each in codec],
        "sequencer": [asdict(each) for each in steps],
        "forming": [asdict(each) for each in forming],
        "table": [asdict(row) for row in rows],
    }
    options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return int(any(row.target and not row.is_met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
