"""Runs the parts of `make test`, `make lint` or `make nightly`, all of them whatever fails; shows what each cost."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402 - sys.path has to have the root first
from rich.text import Text  # noqa: E402 - sys.path has to have the root first

from tests.costs import Budgets, Costs, rank_files, read_shard  # noqa: E402 - sys.path has to have the root first
from tests.house.sources import find_python_files  # noqa: E402 - sys.path has to have the root first

PROGRAMS = Path(sys.executable).parent
TESTS = "tests"
NIGHTLY = "nightly"
DEAREST = 25
# Where `make test` leaves its costs, for `make nightly` to judge.
LAST = ROOT / "build" / "costs.json"
# Three tests at a time, on any machine: with two, a third of two processors' time is spent waiting.
_PYTEST = ("pytest", "--numprocesses=3", "--dist=worksteal", "--durations=15", "--durations-min=1")
_NO_TESTS = 5  # pytest's exit code
# torch looks up, for its log, whose address each connection of a TCPStore has. Where the network loses one question in
# twenty, the resolver's patience (5 s) would cost the tests minutes.
_ENVIRONMENT = {
    "RES_OPTIONS": "timeout:1 attempts:4",
    "NO_MKDOCS_2_WARNING": "1",  # of another project, in a box of ten lines
}


@dataclass(frozen=True, slots=True)
class Part:
    """One command; its first word is a program of this virtual environment."""

    name: str
    command: tuple[str, ...]


PARTS = (
    Part("lint", ("ruff", "check")),
    Part("format", ("ruff", "format", "--check")),
    Part("types", ("mypy",)),
    Part("layers", ("lint-imports",)),
    Part("docs", ("mkdocs", "build", "--quiet")),
    Part(TESTS, (*_PYTEST, "-m", "not nightly")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended: its seconds, its exit code, and what its tests cost."""

    name: str
    seconds: float
    code: int = 0
    costs: Costs | None = None


def run_part(part: Part) -> Outcome:
    """Run one part, showing what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "costs.json"
        command = [str(PROGRAMS / part.command[0]), *part.command[1:]]
        if part.command[0] == "pytest":
            command.append(f"--costs={file}")
        sys.stdout.write(f"\n--- {part.name}: {' '.join(part.command)}\n")
        sys.stdout.flush()
        began = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, env={**_ENVIRONMENT, **os.environ}, check=False).returncode
        if part.name == NIGHTLY and code == _NO_TESTS:  # a shard may be empty
            code = 0
        seconds = time.monotonic() - began
        costs = Costs.read(file.read_text(encoding="utf-8")) if file.exists() else None
    return Outcome(part.name, seconds, code, costs)


def show_parts(outcomes: list[Outcome]) -> Iterator[Text]:
    """The table of parts and tiers; red is what failed, and what an installation would have let run."""
    yield Text("\nwhat each part cost", "bold")
    for outcome in outcomes:
        line = Text(f"{outcome.name:<16}{outcome.seconds:>8.1f} s  ")
        line.append("failed" if outcome.code else "ok", "red" if outcome.code else "")
        if outcome.costs and outcome.costs.skipped:
            is_curable = list_remedies(outcome.costs.skipped)
            line.append(f", {outcome.costs.skipped.total()} skipped", "red" if is_curable else "")
        yield line
        if outcome.costs:
            for tier, seconds in outcome.costs.tiers.items():
                yield Text(f"  {tier:<14}{seconds:>8.1f} s  {outcome.costs.tests[tier]} tests, one after the other")


def show_files(files: Mapping[str, float], budgets: Budgets) -> Iterator[Text]:
    """The dearest files of one run, and all that are over their budget."""
    exceeded = set(budgets.find_exceeded(files))
    total = sum(files.values())
    yield Text(f"\nprocessor seconds in make {budgets.run}: {total:.0f}; the {DEAREST} dearest files", "bold")
    for place, (file, seconds) in enumerate(rank_files(files)):
        if place < DEAREST or file in exceeded:
            budget = budgets.find(file)
            yield Text(f"{seconds:>8.1f} of {budget:>4.0f}  {file}", "red" if file in exceeded else "")


def show_skipped(skipped: Counter[str]) -> Iterator[Text]:
    """How many tests did not run, why, and the command that installs what they need."""
    remedies = list_remedies(skipped)
    yield Text(f"\n{skipped.total()} tests did not run:", "bold red" if remedies else "bold")
    for reason, count in skipped.most_common():
        yield Text(f"{count:>6}  {reason}", "red" if list_remedies([reason]) else "")
    if remedies:
        yield Text("To run them:  ").append(" && ".join(remedies), "bold")


def list_remedies(reasons: Iterable[str]) -> list[str]:
    """The commands that let tests run which were skipped for these reasons: a GPU, or hours, they cannot bring."""
    found = [
        word for reason in reasons for word in re.findall(r"apt-get install ([a-z0-9][a-z0-9 -]*)|\b(root)\b", reason)
    ]
    packages = sorted({name for names, _ in found for name in names.split()})
    needs_root = any(root for _, root in found)
    install = [f"{'sudo ' if needs_root else ''}apt-get install {' '.join(packages)}"] if packages else []
    return [*install, "sudo make test"] if needs_root else install


def judge(costs: Mapping[str, Mapping[str, float]]) -> Iterator[Text]:
    """The files over twice their budget, by run; each also when it runs alone: the machine may have been slow."""
    for run, files in costs.items():
        budgets = Budgets.read(run)
        suspected = {file: measure_alone(run, file) for file in budgets.find_exceeded(files, factor=2)}
        for file in budgets.find_exceeded(suspected, factor=2):
            seconds = f"{files[file]:.1f} processor seconds in make {run}, {suspected[file]:.1f} alone"
            yield Text(
                f"{file}: {seconds}, over twice its budget: make it cheaper, or change tests/budgets.toml", "red"
            )


def measure_alone(run: str, file: str) -> float:
    """The processor seconds of the tests that this file has in a run; a shard has all of them or none."""
    marked = NIGHTLY if run == NIGHTLY else f"not {NIGHTLY}"
    outcome = run_part(Part(f"{file} alone", ("pytest", file, "-m", marked)))
    return 0.0 if outcome.costs is None else outcome.costs.files[file]


def read_last() -> dict[str, Costs]:
    """The costs of the last `make test` here, unless something has changed since."""
    try:
        costs = Costs.read(LAST.read_text(encoding="utf-8"))
        is_current = all((ROOT / file).stat().st_mtime <= LAST.stat().st_mtime for file in find_python_files())
    except (FileNotFoundError, ValueError):  # there was none, or it was interrupted
        return {}
    return {"test": costs} if is_current and all((ROOT / file).exists() for file in costs.files) else {}


def read_arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*(part.name for part in PARTS), NIGHTLY]
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(names)}; default: all but the last"
    )
    parser.add_argument("--began", type=float, help="when the set-up began, in seconds since the epoch")
    parser.add_argument("--shard", type=read_shard, default=(1, 1), metavar="K/N", help="of nightly: the K-th of N")
    asked = parser.parse_args()
    unknown = set(asked.parts) - set(names)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if asked.shard != (1, 1) and NIGHTLY not in asked.parts:
        parser.error("--shard is of nightly: add that part")
    return asked


def main() -> int:
    """Run the parts that are named, or those of `make test`; 1 when one of them failed."""
    asked = read_arguments()
    parts = [part for part in PARTS if not asked.parts or part.name in asked.parts]
    if NIGHTLY in asked.parts:
        parts.append(Part(NIGHTLY, (*_PYTEST, "-m", NIGHTLY, "--shard", "{}/{}".format(*asked.shard))))
    outcomes = [] if asked.began is None else [Outcome("set-up", time.time() - asked.began)]
    outcomes += [run_part(part) for part in parts]
    console = Console(highlight=False, soft_wrap=True)
    console.print(*show_parts(outcomes), sep="\n")
    files = {("test" if o.name == TESTS else o.name): o.costs for o in outcomes if o.costs}
    for run, costs in files.items():
        console.print(*show_files(costs.files, Budgets.read(run)), sep="\n")
    over: list[Text] = []
    if "test" in files:
        LAST.parent.mkdir(exist_ok=True)
        LAST.write_text(files["test"].write(), encoding="utf-8")
    if NIGHTLY in files:
        last = read_last()
        over = list(judge({run: costs.files for run, costs in {**last, **files}.items()}))
        console.print(*over, sep="\n")
    skipped = sum((costs.skipped for costs in files.values()), Counter[str]())
    if skipped:
        console.print(*show_skipped(skipped), sep="\n")
    return 1 if over or any(outcome.code for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
