"""Time until all workers train again after one was killed, where all are started again; compared with torchrun.

    .venv/bin/python benchmarks/restart.py --kills 20 --peers 2

A script of torch.distributed with three workers makes one all_reduce after the other. Rank 1 kills itself with SIGKILL,
again and again. The result is the time from each kill to the end of the first all_reduce of the next life, on the
slowest worker. Rows differ in how the other workers meet that: blocked in a collective, which is what gloo's peers are;
with a handler of SIGTERM that calls a collective, as Lightning's does; with DataLoader children; with SIGTERM ignored.

torchrun restarts one job per kill, as it is, and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which a life reads
the addresses of the last one. It counts as not back after a minute.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tables import describe_machine

SCRIPT = Path(__file__).with_name("restart_worker.py")
SIZE = 3
SETTLED_SECONDS = 7.0  # of a life: the forkserver has then imported what torch imports late
LIMIT_SECONDS = 60.0
KINDS = {
    "blocked": "the others are in a collective",
    "handler": "their handler of SIGTERM calls a collective",
    "children": "they have two DataLoader children each",
    "ignores": "they ignore SIGTERM",
}
GRACE_SECONDS = {"handler": 2.0, "ignores": 2.0}  # until SIGKILL
TARGET_SECONDS = 0.6
PEERS: Mapping[str, Mapping[str, str]] = {
    "torchrun": {},
    "torchrun, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
}


def run(command: Sequence[str], kills: int, limit_seconds: float, extra: Mapping[str, str]) -> list[float]:
    """Run a job, and return the seconds of each restart after which all trained again."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
        return list(read_restarts(Path(folder), kills))


def read_restarts(folder: Path, kills: int) -> Sequence[float]:
    """The seconds from each kill to the first all_reduce that all have completed after it."""
    notes = [json.loads(line) for path in folder.glob("*.notes") for line in path.read_text().splitlines()]
    restarts = []
    for number in range(kills):
        killed = [note["at"] for note in notes if note["what"] == "killed" and note["round"] == number]
        if not killed:
            continue
        lives = {note["round"] for note in notes if note["round"] > number}
        complete = [
            [note["at"] for note in notes if note["what"] == "complete" and note["round"] == life]
            for life in sorted(lives)
        ]
        back = next((max(ends) for ends in complete if len(ends) == SIZE), None)
        if back is not None:
            restarts.append(back - killed[0])
    return restarts


def run_ours(kind: str, kills: int, seconds: float) -> list[float]:
    """One job, whose worker is killed so often."""
    command = [sys.executable, "-m", "hvdrun", "-np", str(SIZE), "--max-restarts", str(kills)]
    words = [sys.executable, str(SCRIPT), kind, str(kills), str(seconds)]
    limit_seconds = 30.0 + kills * (seconds + 10.0)
    return run([*command, *words], kills, limit_seconds, {})


def run_torchrun(extra: Mapping[str, str], seconds: float) -> list[float]:
    """One job of torchrun, whose worker is killed once."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(SIZE)]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", "3"]
    words = [str(SCRIPT), "blocked", "1", str(seconds)]
    return run([*torchrun, *rendezvous, *words], 1, seconds + LIMIT_SECONDS, extra)


def describe(title: str, seconds: Sequence[float], kills: int) -> str:
    """A row of the table."""
    if not seconds:
        return f"| {title} | 0 of {kills} | | |"
    ordered = sorted(seconds)
    slow = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"| {title} | {len(seconds)} of {kills} | {statistics.median(seconds):.2f} s | {slow:.2f} s |"


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each row (default: %(default)s)")
    parser.add_argument("--peers", type=int, default=2, help="jobs of torchrun, of each kind (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=SETTLED_SECONDS, help="of a life (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = {}
    print(describe_machine(), "gloo, three workers", sep=", ")
    print("| | back | median | slowest tenth |\n|---|---|---|---|")
    missed = []
    for kind in arguments.kinds:
        figures[kind] = run_ours(kind, arguments.kills, arguments.seconds)
        print(describe(f"hvdrun, {KINDS[kind]}", figures[kind], arguments.kills), flush=True)
        limit_seconds = TARGET_SECONDS + GRACE_SECONDS.get(kind, 0.0)
        is_met = len(figures[kind]) == arguments.kills and statistics.median(figures[kind]) <= limit_seconds
        missed += [] if is_met else [f"{kind}: all back, in {limit_seconds:g} s (median)"]
    for title, extra in PEERS.items():
        figures[title] = [each for _ in range(arguments.peers) for each in run_torchrun(extra, arguments.seconds)]
        if arguments.peers:
            print(describe(title, figures[title], arguments.peers), flush=True)
    for target in missed:
        print(f"missed: {target}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": describe_machine(), "seconds": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
