"""Time without training after a worker is killed, and when another one takes its place; compared with torchrun.

    .venv/bin/python benchmarks/recovery.py --runs 10

In each run a job trains. At a random moment one worker is killed with SIGKILL, or fails by itself after its next step:
by an exception, `sys.exit(3)` or `os._exit(3)`. All workers record when each of their steps has ended; ours also record
the parts of a recovery. The results are seconds from the kill or failure:

- shrink: until the slowest survivor has ended its next step. Its parts: until the survivor knows of the loss (detect),
  until the next generation and its decision are published (agree), until its members are connected (rebuild), and the
  rest (step);
- started: until the script of the replacing worker begins;
- ready: until that worker waits to be admitted;
- full size: until all have ended a step together again.

It also measures the pause between two steps of a survivor when the new worker is admitted. Parts of the pause are the
broadcast of the state (sync), and the time until the program reads its data again (data: it starts its DataLoader's
processes again). It counts the steps that were done twice. A pause contains a step, and a commit, which saves the
state; what each of these takes without a loss (one step, commit) is not lost time.

A detached job makes each decision durable first: it may take 15 ms longer to shrink than the same job at a terminal.

torchrun (--max-restarts) ends all workers and starts them again, so for it only the return to full size is measured.
Horovod is not measured, since on one host it cannot continue. After a worker has failed by itself, `ready` has no
target: its replacement waits for the end of the process, which takes Python a second.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tables import describe_machine

SCRIPT = Path(__file__).with_name("recovery_worker.py")
START_SECONDS = 60.0
LIMIT_SECONDS = 60.0  # for a job to be at its full size again
WARM_STEPS = 20
WARM_SECONDS = 9.0
SETTLED_STEPS = 5  # that all have made together, at full size
MOMENT_SECONDS = 0.2  # within which the victim is killed
PARTS = ("shrink", "detect", "agree", "rebuild", "step", "started", "ready", "full size", "pause", "sync", "data")
STARTING = ("started", "ready")
ORDINARY = ("one step", "commit")  # when nothing happens
DETACHED_SECONDS = 0.015  # that a detached job may take longer
TARGET = {"shrink": 0.06, "ready": 0.6, "pause": 0.1}  # seconds, on top of what `judge` allows
ALLOWED: dict[str, tuple[str, ...]] = {
    "shrink": ("one step",),
    "ready": (),
    "pause": ("one step", "commit", "sync", "data"),
}

Note = dict[str, Any]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and the worker that it loses.

    size: the number of workers.
    victim: its rank.
    width: the width of the hidden layer.
    children: the number of processes that load data for each worker.
    fate: how the victim ends: "kill" for SIGKILL, or one of `recovery_worker.FATES`.
    is_peer: it runs under torchrun.
    is_detached: it keeps a journal.
    device: where it trains.
    launch: more options of hvdrun.
    """

    title: str
    size: int = 2
    victim: int = 1
    width: int = 90
    children: int = 0
    fate: str = "kill"
    is_peer: bool = False
    is_detached: bool = False
    device: str = "cpu"
    launch: tuple[str, ...] = ()


CASES = {
    "small": Case("10,000 parameters, rank 1"),
    "detached": Case("the same, with --detach", is_detached=True),
    "exception": Case("the same, an exception", fate="exception"),
    "exit": Case("the same, `sys.exit(3)`", fate="exit"),
    "_exit": Case("the same, `os._exit(3)`", fate="_exit"),
    "rank-0": Case("the same, rank 0", victim=0),
    "three": Case("the same, one of three", size=3),
    "children": Case("the same, two DataLoader children", children=2),
    "large": Case("25 M parameters", width=225_000),
    "torchrun": Case("torchrun --max-restarts, 10,000 parameters", is_peer=True),
}


class Watcher:
    """Reads the records of a job's workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[Note]:
        """All complete records, in the order of their times."""
        notes: list[Note] = []
        for path in self._folder.glob("*.notes"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            notes += [{"pid": int(path.stem), **json.loads(line)} for line in lines if line.endswith("\n")]
        return sorted(notes, key=lambda note: float(note["at"]))

    def wait(self, is_enough: Callable[[list[Note]], bool], limit_seconds: float) -> list[Note] | None:
        """Wait until the records are sufficient; None if they are not in time."""
        deadline = time.monotonic() + limit_seconds
        while time.monotonic() < deadline:
            notes = self.read()
            if is_enough(notes):
                return notes
            time.sleep(0.05)
        return None


def have_stepped(notes: Sequence[Note], size: int, after: float, count: int) -> bool:
    """Whether enough workers have ended enough steps at full size after a time."""
    steps = [note for note in notes if note["what"] == "step" and note["size"] == size and note["at"] > after]
    pids = [note["pid"] for note in steps]
    return sum(pids.count(pid) >= count for pid in set(pids)) >= size


def run_once(case: Case, chance: random.Random, warm_seconds: float) -> Figures | None:
    """Run one job; return None if it was not back at full size within the limit."""
    with tempfile.TemporaryDirectory() as name, start(case, Path(name)):
        watcher = Watcher(Path(name))
        notes = watcher.wait(lambda notes: have_stepped(notes, case.size, 0.0, WARM_STEPS), START_SECONDS)
        if notes is None:
            raise RuntimeError(f"{case.title}: the workers have not trained within {START_SECONDS:g} s")
        victim = next(note["pid"] for note in notes if note["what"] == "step" and note["rank"] == case.victim)
        time.sleep(warm_seconds + chance.uniform(0.0, MOMENT_SECONDS))
        killed = end(case, watcher, victim)
        back = watcher.wait(lambda notes: have_stepped(notes, case.size, killed, SETTLED_STEPS), LIMIT_SECONDS)
        return None if back is None else measure(case, back, victim, killed)


def end(case: Case, watcher: Watcher, victim: int) -> float:
    """Kill the victim, or make it fail; return the time."""
    if case.fate == "kill":
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return killed
    os.kill(victim, signal.SIGUSR1)
    notes = watcher.wait(lambda notes: min_at(notes, victim, 0.0, "fails") is not None, LIMIT_SECONDS)
    if notes is None:
        raise RuntimeError(f"{case.title}: the worker has not failed within {LIMIT_SECONDS:g} s")
    return min_at(notes, victim, 0.0, "fails") or 0.0


@contextmanager
def start(case: Case, folder: Path) -> Iterator[None]:
    """A context in which the job runs, and its workers write into the folder."""
    python = Path(sys.executable)
    way = "ddp" if case.is_peer else "ours"
    arguments = [str(SCRIPT), way, str(folder), str(case.width), str(case.children), case.fate, case.device]
    if case.is_peer:
        launch = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "3", "--nproc-per-node"]
        command = [str(python), *launch, str(case.size), *arguments]
    else:
        launch = ["-m", "hvdrun", "-np", str(case.size), "--min-np", "1", *case.launch]
        command = [str(python), *launch, "python", *arguments]
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    if case.is_detached:
        with detach(command, {**environment, "XDG_STATE_HOME": str(folder / "state")}):
            yield
        return
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def detach(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """A context in which the job of this command runs without a terminal."""

    def run(words: Sequence[str]) -> str:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        return done.stdout.strip()

    python, module, program, *words = command
    job = run([python, module, program, "--detach", *words])
    try:
        yield
    finally:
        for verb in ("stop", "wait"):
            run([python, module, program, verb, job])


def measure(case: Case, notes: Sequence[Note], victim: int, killed: float) -> Figures:
    """What the notes of a run tell."""
    steps = [note for note in notes if note["what"] == "step"]
    survivors = {note["pid"] for note in notes if note["at"] < killed} - {victim}
    full = [min_at(steps, pid, killed, size=case.size) for pid in {note["pid"] for note in steps} - {victim}]
    figures = {"full size": max(at for at in full if at is not None) - killed}
    if not case.is_peer:
        slowest = max(survivors, key=lambda pid: min_at(notes, pid, killed, "resumed") or 0.0)
        own = [note for note in notes if note["pid"] == slowest]
        new = [note for note in notes if note["pid"] not in {*survivors, victim}]
        figures |= measure_shrinking(own, killed) | measure_growth(own, killed)
        figures |= {what: next(note["at"] for note in new if note["what"] == what) - killed for what in STARTING}
    return figures


def measure_shrinking(own: Sequence[Note], killed: float) -> Figures:
    """What a survivor recorded until its next step without the victim."""
    ends = [killed]
    for what in ("interrupted", "published", "resumed", "step"):
        ends.append(min_at(own, own[0]["pid"], ends[-1], what) or ends[-1])
    parts = [later - earlier for earlier, later in pairwise(ends)]
    return {"shrink": ends[-1] - killed, **dict(zip(("detect", "agree", "rebuild", "step"), parts, strict=True))}


def measure_growth(own: Sequence[Note], killed: float) -> Figures:
    """What a survivor recorded while the new worker was admitted, and of all its steps."""
    steps = list(pairwise(note for note in own if note["what"] == "step"))
    entered = [note["at"] for note in own if note["what"] == "entered"]
    connected = [note["at"] for note in own if note["what"] == "connected"]
    fed = [note["at"] for note in own if note["what"] == "fed"]
    return {
        "pause": max(later["at"] - earlier["at"] for earlier, later in steps if earlier["size"] < later["size"]),
        "sync": entered[-1] - connected[-1],
        "data": fed[-1] - entered[-1],
        "steps lost": float(sum(later["step"] <= earlier["step"] for earlier, later in steps)),
        "one step": statistics.median(later["at"] - earlier["at"] for earlier, later in steps if later["at"] < killed),
        "commit": statistics.median(measure_commits(own, killed)),
    }


def measure_commits(own: Sequence[Note], killed: float) -> Iterator[float]:
    """The time of each earlier commit, from the end of the step before it."""
    for earlier, later in pairwise(own):
        if later["what"] == "committed" and later["at"] < killed:
            yield later["at"] - earlier["at"]


def min_at(notes: Sequence[Note], pid: int, after: float, what: str = "step", size: int | None = None) -> float | None:
    """The first time after `after` at which a process recorded this event; with a size, in a job of that size."""
    found = (
        float(note["at"])
        for note in notes
        if note["pid"] == pid
        and note["what"] == what
        and note["at"] > after
        and (size is None or note.get("size") == size)
    )
    return next(found, None)


def find_p90(values: Sequence[float]) -> float:
    """The value that nine of ten do not exceed."""
    return sorted(values)[max(0, -(-len(values) * 9 // 10) - 1)]


def render(results: Mapping[str, Sequence[Figures | None]]) -> str:
    """The table: medians in milliseconds, each with its 90th percentile."""
    lines = [f"| lost | {' | '.join((*PARTS, *ORDINARY))} | steps lost | not back |"]
    lines.append("|---" * lines[0].count(" | ") + "|---|")
    for name, runs in results.items():
        good = [run for run in runs if run is not None]
        cells = [_summarize([run[part] for run in good if part in run]) for part in (*PARTS, *ORDINARY)]
        lost = [run["steps lost"] for run in good if "steps lost" in run]
        cells.append(f"{sum(lost):.0f}" if lost else "all")
        cells.append(f"{len(runs) - len(good)} of {len(runs)}")
        lines.append(f"| {CASES[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def judge(results: Mapping[str, Sequence[Figures | None]]) -> list[str]:
    """Which targets the medians meet."""
    told = []
    for name, runs in results.items():
        good = [run for run in runs if run is not None and "shrink" in run]
        fails = CASES[name].fate in {"exception", "exit"}
        for part, target in TARGET.items() if good else ():
            if fails and part == "ready":
                continue
            over = statistics.median(sum(run[more] for more in ALLOWED[part]) for run in good)
            median = statistics.median(run[part] for run in good)
            state = "met" if median <= target + over else "missed"
            bound = " + ".join([f"{target:g} s", *ALLOWED[part]])
            told.append(f"- {CASES[name].title}: {part} <= {bound}: **{state}**")
    both = [[run["shrink"] for run in results.get(name, ()) if run is not None] for name in ("small", "detached")]
    if all(both):
        longer = statistics.median(both[1]) - statistics.median(both[0])
        state = "met" if longer <= DETACHED_SECONDS else "missed"
        told.append(
            f"- with --detach it takes {longer * 1e3:.0f} ms longer, <= {DETACHED_SECONDS * 1e3:.0f} ms: **{state}**"
        )
    return told


def _summarize(values: Sequence[float]) -> str:
    return f"{statistics.median(values) * 1e3:.0f} ({find_p90(values) * 1e3:.0f})" if values else ""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="jobs of each case (default: %(default)s)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="which (default: all)")
    parser.add_argument(
        "--warm",
        type=float,
        default=WARM_SECONDS,
        metavar="SECONDS",
        help="train so long before the kill: the forkserver imports meanwhile what only a replacement needs ready "
        "(default: %(default)s)",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where ours trains")
    parser.add_argument("--backend", help="an option of hvdrun")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    launch = ("--backend", arguments.backend) if arguments.backend else ()
    machine, chance = describe_machine(), random.Random(1)  # noqa: S311 - moments, no secret
    results: dict[str, list[Figures | None]] = {name: [] for name in arguments.cases}
    for number in range(arguments.runs):
        for name, runs in results.items():
            print(f"run {number + 1} of {arguments.runs}: {name}    ", file=sys.stderr, end="\r", flush=True)
            case = replace(CASES[name], device=arguments.device, launch=launch)
            runs.append(run_once(case, chance, arguments.warm))
    print(f"\n{machine}\n\n### loss of a worker: ms, median (p90) of {arguments.runs} runs\n\n{render(results)}\n")
    print("\n".join(judge(results)), flush=True)
    if arguments.json is not None:
        figures = [{**asdict(CASES[name]), "name": name, "runs": runs} for name, runs in results.items()]
        text = json.dumps({"machine": machine, "cases": figures}, indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
