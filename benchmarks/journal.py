"""What a durable decision costs: the journal beside the real core, on the disk of a folder.

    .venv/bin/python benchmarks/journal.py --hosts 1000 --folder /var/tmp

A job of hosts with 8 slots starts, with one write for each group of joins; then members declare a state, one durable
write each; then only heartbeats and ticks come; then the server starts again. The bytes are those that the process
gives to the kernel.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tables import describe_machine

from rendezvous.core import membership
from rendezvous.core.messages import Declared, Event, HostsChanged, Joined, Reported, Ticked
from rendezvous.core.model import Host, Policy
from rendezvous.core.state import State
from rendezvous.journal.sqlite import SqliteJournal, open_journal

SLOTS = 8
JOINS = 64  # that come while one write is under way
BEATS = 5


@dataclass(frozen=True, slots=True)
class Costs:
    """Of some writes: the seconds of each, and the bytes of all."""

    seconds: Sequence[float]
    size: int


def step(state: State, *events: Event) -> State:
    """The state after these events."""
    for event in events:
        state, _ = membership.step(state, event)
    return state


async def write(journal: SqliteJournal, states: Iterator[State]) -> tuple[State, Costs]:
    """Write each state when the one before is durable; the last one, and the costs."""
    seconds, before = [], count_written()
    for state in states:
        began = time.perf_counter()
        await journal.write(state)
        seconds.append(time.perf_counter() - began)
    return state, Costs(seconds, count_written() - before)


def count_written() -> int:
    """The bytes that this process has written."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])


def start(state: State) -> Iterator[State]:
    """All workers join."""
    workers = [record.worker for record in state.workers.values()]
    yield state
    for first in range(0, len(workers), JOINS):
        state = step(state, *map(Joined, workers[first : first + JOINS]))
        yield state


def decide(state: State, count: int) -> Iterator[State]:
    """Members declare that they have a state."""
    for record in list(state.workers.values())[:count]:
        state = step(state, Declared(record.worker))
        yield state


def beat(state: State) -> Iterator[State]:
    """All agents report what they have reported before, each fourth of a second some, and the clock ticks."""
    reports = [Reported(host, tuple(record.worker for record in state.on(host))) for host in state.hosts]
    for number in range(1, 1 + BEATS):
        state = step(state, Ticked(state.now + 0.25 * number))
        for report in reports:
            state = step(state, report)
            yield state


def show(what: str, costs: Costs) -> None:
    """Print a row."""
    seconds = sorted(costs.seconds)
    p99 = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    times = f"{statistics.median(seconds) * 1e3:.3f} ms | {p99 * 1e3:.3f} ms | {sum(seconds):.2f} s"
    print(
        f"| {what} | {len(seconds)} | {times} | {costs.size / len(seconds):.0f} B | {costs.size / 1e6:.2f} MB |",
        flush=True,
    )


async def measure(hosts: int, decisions: int, folder: Path) -> None:
    """Print all rows of a job of one size."""
    journal = open_journal(folder, warn=print)
    policy = Policy.elastic(1, None, hosts * SLOTS)
    state = step(membership.begin(policy), HostsChanged(tuple(Host(f"server{each}", SLOTS) for each in range(hosts))))
    state = step(state, Ticked(0.0))
    state, costs = await write(journal, start(state))
    show(f"start of {hosts * SLOTS:,} workers, {JOINS} joins a write", costs)
    for host in state.hosts:
        state = step(state, Reported(host, tuple(record.worker for record in state.on(host))))
    await journal.write(state)
    state, costs = await write(journal, decide(state, decisions))
    show("one decision a write", costs)
    state, costs = await write(journal, beat(state))
    show(f"{BEATS} heartbeats of all hosts", costs)
    await journal.close()
    began = time.perf_counter()
    journal = open_journal(folder, warn=print)
    seconds = time.perf_counter() - began
    await journal.close()
    size = (folder / "journal.db").stat().st_size
    print(f"\nThe next server reads it in {seconds * 1e3:.0f} ms; the file has {size / 1e6:.2f} MB.")


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000, help="of the job (default: %(default)s)")
    parser.add_argument("--decisions", type=int, default=500, help="(default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured (default: the one of $TMPDIR)")
    arguments = parser.parse_args()
    print(describe_machine())
    print("| | writes | median | p99 | all | bytes each | bytes |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        asyncio.run(measure(arguments.hosts, arguments.decisions, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
