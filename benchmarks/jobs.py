"""A benchmark inside a job: the script starts hvdrun, and in the workers the contenders take turns.

All contenders are in the same processes. The workers meet at a barrier before each block; the barrier is not measured.
The time of an operation is that of the slowest worker.
"""

import argparse
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from paired import take_round
from tables import Table, describe_machine, write_json
from targets import Samples, Target, judge

# Runs some operations and returns the seconds that each of them took.
Block = Callable[[], Sequence[float]]

_PROFILE_LINES = 30
_WARM_UP = range(-3, 0)  # rounds in which buckets, connections and caches are built


@dataclass(frozen=True, slots=True)
class Case:
    """Contenders that take turns.

    ours: the contenders that `--profile` profiles.
    slow: contenders without a target, which run in the first `--pairs` rounds only.
    """

    title: str
    contenders: Mapping[str, Block]
    peers: Sequence[str]
    targets: Sequence[Target]
    ours: frozenset[str]
    slow: frozenset[str] = frozenset()


def make_parser(description: str | None, sizes: Sequence[int]) -> argparse.ArgumentParser:
    """The options of all benchmarks that run inside a job."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--np", type=int, nargs="+", default=list(sizes), help="sizes of the jobs (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=20, help="rounds at least (default: %(default)s)")
    parser.add_argument("--most-pairs", type=int, default=400, help="rounds at most (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="profile rank 0 in our contenders; measure nothing"
    )
    return parser


def is_worker() -> bool:
    """Whether this process is a worker of a job."""
    return "RANK" in os.environ


def run_jobs(script: Path, sizes: Sequence[int], result: Path | None) -> int:
    """Start this script with hvdrun, once for each size; return the exit code of the first failed job, or 0."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    machine, tables = "", []
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.json"
        for size in sizes:
            launch = [sys.executable, "-m", "hvdrun", "--no-prefix", "-np", str(size), "python", str(script)]
            code = subprocess.run(
                [*launch, *sys.argv[1:], "--json", str(part)], env=environment, check=False
            ).returncode
            if code:
                return code
            if part.exists():
                figures = json.loads(part.read_text(encoding="utf-8"))
                machine = machine or figures["machine"]
                tables += figures["tables"]
    if result is not None and tables:
        result.write_text(json.dumps({"machine": machine, "tables": tables}, indent=2) + "\n", encoding="utf-8")
    return 0


def run_cases(cases: Iterable[Case], arguments: argparse.Namespace) -> None:
    """In a worker, measure each case; rank 0 prints its table and writes the JSON. With --profile, only profile.

    torch's default group must exist.
    """
    is_first = dist.get_rank() == 0
    machine = describe_machine()
    if arguments.profile is not None:
        for case in cases:
            _profile(case, arguments.pairs, arguments.profile)
        return
    if is_first:
        print(f"\n{machine}\n", flush=True)
    tables = []
    for case in cases:
        tables.append(Table.make(case.title, measure(case, arguments), case.peers, case.targets))
        if is_first:
            print(tables[-1].render(), end="\n\n", flush=True)
    if is_first and arguments.json is not None:
        write_json(arguments.json, machine, tables)


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Samples]:
    """Measure the contenders in turns until the interval of every target is narrow enough, or the limit is reached.

    Every worker gets the same figures, so all workers stop after the same round.
    """
    for number in _WARM_UP:
        take_round(_meet_before(case.contenders), number)
    samples: dict[str, Samples] = {}
    done = 0
    while not done or (done < arguments.most_pairs and not _is_decided(case.targets, samples)):
        more = min(arguments.pairs, arguments.most_pairs - done) if done else arguments.pairs
        running = {name: block for name, block in case.contenders.items() if not done or name not in case.slow}
        rounds = [take_round(_meet_before(running), done + number) for number in range(more)]
        for name in running:
            slowest = find_slowest(np.array([result[name] for result in rounds], dtype=np.float64))
            samples[name] = np.concatenate([samples[name], slowest]) if name in samples else slowest
        done += more
    return samples


def find_slowest(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The time of each operation on its slowest worker."""
    tensor = torch.from_numpy(seconds.copy())
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return np.asarray(tensor.numpy(), dtype=np.float64)


def _is_decided(targets: Sequence[Target], samples: Mapping[str, Samples]) -> bool:
    return all(judge(target, samples).is_decided for target in targets)


def _meet_before(contenders: Mapping[str, Block]) -> dict[str, Block]:
    def meet_and_run(block: Block) -> Sequence[float]:
        dist.barrier()
        return block()

    return {name: lambda block=block: meet_and_run(block) for name, block in contenders.items()}  # type: ignore[misc]  # mypy infers no type for a lambda's default


def _profile(case: Case, rounds: int, path: Path) -> None:
    """Run our contenders alone, with rank 0's main thread under cProfile; write a file for each, and print its top."""
    ours = {name: block for name, block in case.contenders.items() if name in case.ours}
    profiles = {name: cProfile.Profile() for name in ours}

    def run(name: str) -> Sequence[float]:
        return profiles[name].runcall(ours[name]) if dist.get_rank() == 0 else ours[name]()

    for number in _WARM_UP:
        take_round(_meet_before(ours), number)
    for number in range(rounds):
        take_round(_meet_before({name: lambda name=name: run(name) for name in ours}), number)  # type: ignore[misc]  # mypy infers no type for a lambda's default
    if dist.get_rank() != 0:
        return
    for name, profile in profiles.items():
        slug = "-".join("".join(c if c.isalnum() else " " for c in f"{case.title} {name}").split())
        target = path.with_name(f"{path.stem}-{slug}{path.suffix}")
        profile.dump_stats(target)
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(_PROFILE_LINES)
        print(f"### {case.title}: {name}, {rounds} rounds, in {target}\n{text.getvalue()}", flush=True)
