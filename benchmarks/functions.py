"""Time of a small function on warm workers: `hvdrun.Cluster.run()` compared with a pool of processes.

    .venv/bin/python benchmarks/functions.py --rounds 200

Prints a table and writes benchmarks/functions.json. The target: `run_again`, the second and every further run of an
empty function, takes at most 20 ms on two workers. It also measures how soon a test with `@pytest.mark.hvdrun` fails
when its ranks diverge: one returns while the other waits, or each waits for the other. The target is 2 s.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from paired import compare, render, take_turns, write_json

import hvdrun
from hvdrun.testing.rank import Style, run_test

PEER = "multiprocessing.Pool.map"
RUN_AGAIN = "run_again"
TARGET_SECONDS = 0.020
RETURNED, DEADLOCK = "one_rank_returned", "ranks_wait_for_each_other"
PARTED_TARGET_SECONDS = 2.0
PARTED_ROUNDS = 10
SIZE = 2
RESULT = Path(__file__).with_suffix(".json")


def measure(call: Callable[[], list[int]]) -> float:
    """The seconds of one call, which must have run in two different processes."""
    start = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - start
    if len(found) != SIZE:
        raise RuntimeError(f"{found} instead of {SIZE} processes")
    return seconds


def get_pid(_: int = 0) -> int:
    """A function that does nothing."""
    return os.getpid()


def part(kind: str) -> None:
    """A test whose ranks part."""
    import torch  # noqa: PLC0415 - in the workers alone

    import worker_runtime.torch as hvd  # noqa: PLC0415 - in the workers alone

    hvd.init()
    names = ["a", "b"] if hvd.rank() == 0 else ["b", "a"]
    if kind == RETURNED:
        names = names[:1] if hvd.rank() == 0 else []
    for name in names:
        hvd.allreduce(torch.ones(1), name=name)


def measure_parting(cluster: hvdrun.Cluster, kind: str) -> float:
    """The seconds until a test with diverging ranks has failed."""
    start = time.perf_counter()
    answers = cluster.call(run_test, (part, {"kind": kind}, Style("long", shows_locals=False)), {}, leaves_group=True)
    seconds = time.perf_counter() - start
    if not answers.has_failed or len(answers.delivered) < SIZE:
        raise RuntimeError(f"{kind}: the test did not fail on its own")
    for outcome in answers.delivered:
        outcome.body.close()
    return seconds


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
        measure_parting(cluster, RETURNED)  # imports torch
        partings = {kind: partial(measure_parting, cluster, kind) for kind in (RETURNED, DEADLOCK)}
        parted = take_turns(partings, min(PARTED_ROUNDS, arguments.rounds))
    title = f"a function that does nothing, {SIZE} workers"
    rows = compare(seconds, PEER)
    print(render(title, rows), end="\n\n")
    median = statistics.median(seconds[RUN_AGAIN])
    state = "met" if median <= TARGET_SECONDS else "missed"
    print(f"{RUN_AGAIN} <= {TARGET_SECONDS * 1e3:.0f} ms (median): {state}, {median * 1e3:.1f} ms", flush=True)
    for kind, spent in parted.items():
        state = "met" if max(spent) <= PARTED_TARGET_SECONDS else "missed"
        print(f"{kind} <= {PARTED_TARGET_SECONDS:.0f} s (slowest): {state}, {max(spent):.2f} s", flush=True)
    write_json(arguments.json, {title: rows, "a test whose ranks part": compare(parted, RETURNED)})


if __name__ == "__main__":
    main()
