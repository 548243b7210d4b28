"""Time until all workers train again after one was killed, where all are started again; compared with torchrun.

    .venv/bin/python benchmarks/restart.py --kills 20 --peers 2

A script of torch.distributed with three workers makes one all_reduce after the other. Rank 1 kills itself with SIGKILL,
again and again. The result is the time from each kill to the end of the first all_reduce of the next life, on the
slowest worker. Rows differ in how the other workers meet that: blocked in a collective, which is what gloo's peers are;
with a handler of SIGTERM that calls a collective, as Lightning's does; with DataLoader children; with SIGTERM ignored.

The row `hosts` is one job on two hosts over SSH (see `restart_hosts.py`), killed thirty times by default. It also tells
what the launcher, the agents and the forkservers have in use after the third kill and after the last, and what is left.

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

import restart_hosts
from restart_notes import SIZE, read_restarts
from tables import describe_machine

SCRIPT = Path(__file__).with_name("restart_worker.py")
SETTLED_SECONDS = 7.0  # of a life: the forkserver has then imported what torch imports late
LIMIT_SECONDS = 60.0
KINDS = {
    "blocked": "the others are in a collective",
    "handler": "their handler of SIGTERM calls a collective",
    "children": "they have two DataLoader children each",
    "ignores": "they ignore SIGTERM",
}
HOSTS = "hosts"
GRACE_SECONDS = {"handler": 2.0, "ignores": 2.0}  # until SIGKILL
TARGET_SECONDS = 0.6
Row = Mapping[str, object]
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
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, HOSTS], default=[*KINDS, HOSTS])
    parser.add_argument("--host-kills", type=int, default=30, help="of the row 'hosts' (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SETTLED_SECONDS, help="of a life (default: %(default)s)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there, and keep the others of that file"
    )
    arguments = parser.parse_args()
    machine = describe_machine()
    rows: dict[str, Row] = {}
    print(machine, "gloo, three workers", sep=", ")
    print("| | back | median | slowest tenth |\n|---|---|---|---|")
    missed = []
    for kind in (each for each in arguments.kinds if each in KINDS):
        seconds = run_ours(kind, arguments.kills, arguments.seconds)
        rows[name_row(kind, arguments.kills)] = {"kills": arguments.kills, "seconds": seconds}
        print(describe(f"hvdrun, {KINDS[kind]}", seconds, arguments.kills), flush=True)
        limit_seconds = TARGET_SECONDS + GRACE_SECONDS.get(kind, 0.0)
        is_met = len(seconds) == arguments.kills and statistics.median(seconds) <= limit_seconds
        missed += [] if is_met else [f"{kind}: all back, in {limit_seconds:g} s (median)"]
    for title, extra in PEERS.items() if arguments.peers else ():
        seconds = [each for _ in range(arguments.peers) for each in run_torchrun(extra, arguments.seconds)]
        rows[name_row(title, arguments.peers)] = {"kills": arguments.peers, "seconds": seconds}
        print(describe(title, seconds, arguments.peers), flush=True)
    if HOSTS in arguments.kinds:
        row, misses = measure_hosts(arguments.host_kills, arguments.seconds)
        rows |= row
        missed += misses
    for target in missed:
        print(f"missed: {target}")
    if arguments.json is not None:
        write_rows(arguments.json, machine, rows)
    return 0


def measure_hosts(kills: int, seconds: float) -> tuple[dict[str, Row], list[str]]:
    """Print the row of two hosts and what belongs to it; return it with the targets that it missed."""
    obstacle = restart_hosts.find_obstacle()
    if obstacle is not None:
        print(f"not measured on two hosts: {obstacle}")
        return {}, []
    job = restart_hosts.run_hosts(SCRIPT, kills, seconds)
    print(describe(f"hvdrun, {restart_hosts.TITLE}", job.seconds, kills), flush=True)
    print("", *job.describe(kills), sep="\n")
    return {name_row(HOSTS, kills): {"kills": kills, **job.to_json()}}, job.list_missed(kills)


def name_row(kind: str, kills: int) -> str:
    """The name of a row among the figures: a run with other kills is another row."""
    return f"{kind}, {kills} kills"


def write_rows(path: Path, machine: str, rows: Mapping[str, Row]) -> None:
    """Write rows, each with the machine; rows of the file that were not measured now stay."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    measured = {title: {"machine": machine, **row} for title, row in rows.items()}
    path.write_text(json.dumps(known | measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
