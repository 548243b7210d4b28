"""The output of benchmarks inside a job: one Markdown table for each case, and the same figures as JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from targets import MEDIAN, P90, Interval, Samples, Target, Verdict, estimate, figures, judge, pair


@dataclass(frozen=True, slots=True)
class Beside:
    """A contender compared with a peer: the medians of the paired differences and ratios."""

    peer: str
    difference: Interval
    ratio: float


@dataclass(frozen=True, slots=True)
class Line:
    """One contender's figures: the median over its rounds of a block's median and of a block's 90th percentile.

    p90_seconds: None where a block is too short for one.
    """

    name: str
    rounds: int
    median_seconds: float
    p90_seconds: float | None
    beside: tuple[Beside, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One case."""

    title: str
    peers: tuple[str, ...]
    lines: tuple[Line, ...]
    verdicts: tuple[Verdict, ...]

    @classmethod
    def make(
        cls, title: str, samples: Mapping[str, Samples], peers: Sequence[str], targets: Sequence[Target]
    ) -> "Table":
        """Summarize the measurements; contenders are compared with those of `peers` that took part."""
        present = tuple(peer for peer in peers if peer in samples)
        lines = tuple(_make_line(name, samples, present) for name in samples)
        return cls(title, present, lines, tuple(judge(target, samples) for target in targets))

    def render(self) -> str:
        """Markdown; times in milliseconds."""
        has_p90 = any(line.p90_seconds is not None for line in self.lines)
        heads = ["", "median", *(["p90"] if has_p90 else [])]
        for peer in self.peers:
            heads += [f"minus {peer}, ms (95 %)", "ratio"]
        rows = [f"### {self.title}", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        rows += [self._render_line(line, has_p90=has_p90) for line in self.lines]
        if self.verdicts:
            rows += ["", *(f"- {_render_verdict(verdict)}" for verdict in self.verdicts)]
        return "\n".join(rows)

    def _render_line(self, line: Line, *, has_p90: bool) -> str:
        cells = [line.name, _in_ms(line.median_seconds)]
        if has_p90:
            cells.append("" if line.p90_seconds is None else _in_ms(line.p90_seconds))
        found = {beside.peer: beside for beside in line.beside}
        for peer in self.peers:
            beside = found.get(peer)
            cells += ["", ""] if beside is None else [_render_interval(beside.difference), f"{beside.ratio:.2f}"]
        return f"| {' | '.join(cells)} |"


def describe_machine() -> str:
    """The machine and the date, in one line."""
    names = [line.partition(": ")[2].strip() for line in _read_cpus() if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    when = datetime.now(UTC).date().isoformat()
    return f"{when}: {os.cpu_count()} cores ({processor}), {versions}, load {os.getloadavg()[0]:.1f} before"


def write_json(path: Path, machine: str, tables: Sequence[Table]) -> None:
    """Write the same figures as JSON, in seconds."""
    figures_of_tables = [
        {
            "title": table.title,
            "lines": [asdict(line) for line in table.lines],
            "targets": [
                {"title": str(verdict.target), "state": verdict.state, **asdict(verdict)} for verdict in table.verdicts
            ],
        }
        for table in tables
    ]
    text = json.dumps({"machine": machine, "tables": figures_of_tables}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def _make_line(name: str, samples: Mapping[str, Samples], peers: Sequence[str]) -> Line:
    own = samples[name]
    beside = []
    for peer in (peer for peer in peers if peer != name):
        mine, theirs = pair(own, samples[peer])
        beside.append(Beside(peer, estimate(mine - theirs), float(np.median(mine / theirs))))
    p90 = float(np.median(figures(own, P90))) if own.shape[1] >= 1 / (1 - P90) else None
    return Line(name, len(own), float(np.median(figures(own, MEDIAN))), p90, tuple(beside))


def _render_interval(interval: Interval) -> str:
    middle, low, high = (f"{seconds * 1e3:+.{_digits(interval.middle)}f}" for seconds in asdict(interval).values())
    return f"{middle} ({low} to {high})"


def _render_verdict(verdict: Verdict) -> str:
    return (
        f"{verdict.target}: **{verdict.state}** ({verdict.pairs} pairs, beyond the bound by "
        f"{_render_interval(verdict.excess)} ms, half-width {verdict.width:.1%} of {verdict.target.peer})"
    )


def _in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{_digits(seconds)}f} ms"


def _digits(seconds: float) -> int:
    """The number of significant decimals of a time in milliseconds."""
    return 3 if abs(seconds) < 1e-3 else 2 if abs(seconds) < 1e-2 else 1  # noqa: PLR2004 - a millisecond, ten


def _read_cpus() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
