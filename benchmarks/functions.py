"""How long a small function takes on workers that are warm: `hvdrun.Cluster.run()` beside a pool of processes.

    .venv/bin/python benchmarks/functions.py --rounds 200

Prints a table and writes benchmarks/functions.json. The target: `run_again`, the second and every further run of a
function that does nothing, takes at most 20 ms on two workers.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from paired import compare, render, take_turns, write_json

import hvdrun

PEER = "multiprocessing.Pool.map"
RUN_AGAIN = "run_again"
TARGET_SECONDS = 0.020
SIZE = 2
RESULT = Path(__file__).with_suffix(".json")


def measure(call: Callable[[], list[int]]) -> float:
    """The seconds of one call, which must return two different processes."""
    start = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - start
    if len(found) != SIZE:
        raise RuntimeError(f"{found} instead of {SIZE} processes")
    return seconds


def get_pid(_: int = 0) -> int:
    """A function that does nothing."""
    return os.getpid()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="turns per contender (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RESULT, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    with multiprocessing.Pool(SIZE) as pool, hvdrun.Cluster(num_proc=SIZE) as cluster:
        cluster.run(get_pid)  # starts the workers
        contenders = {
            PEER: lambda: measure(lambda: pool.map(get_pid, range(SIZE), chunksize=1)),
            RUN_AGAIN: lambda: measure(lambda: cluster.run(get_pid)),
        }
        seconds = take_turns(contenders, arguments.rounds)
    title = f"a function that does nothing, {SIZE} workers"
    rows = compare(seconds, PEER)
    print(render(title, rows), end="\n\n")
    median = statistics.median(seconds[RUN_AGAIN])
    state = "met" if median <= TARGET_SECONDS else "missed"
    print(f"{RUN_AGAIN} <= {TARGET_SECONDS * 1e3:.0f} ms (median): {state}, {median * 1e3:.1f} ms", flush=True)
    write_json(arguments.json, {title: rows})


if __name__ == "__main__":
    main()
