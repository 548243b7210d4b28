"""Paired measurement: the contenders take turns, so that the machine's noise affects all of them."""

import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

_Z = 1.96  # the normal approximation is good enough for 20 pairs and more

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's figures.

    median_seconds: of its runs.
    ratio: the median of its time divided by the peer's in the same round.
    low, high: the 95 % interval of the mean of these ratios.
    """

    name: str
    median_seconds: float
    ratio: float
    low: float
    high: float


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run each contender once in each round; return the seconds of each contender."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, result in take_round(contenders, number).items():
            seconds[name].append(result)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, end="\r", flush=True)
    print(file=sys.stderr)
    return seconds


def take_round(contenders: Mapping[str, Callable[[], ResultT]], number: int) -> dict[str, ResultT]:
    """Call each contender once, in an order that the round's number determines, the same in all processes."""
    names = list(contenders)
    random.Random(number).shuffle(names)  # noqa: S311 - no secret: who comes first
    return {name: contenders[name]() for name in names}


def compare(seconds: Mapping[str, Sequence[float]], peer: str) -> list[Row]:
    """Compare each contender with the peer in the same rounds."""
    return [_compare_one(name, own, seconds[peer]) for name, own in seconds.items()]


def render(title: str, rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = [f"### {title}", "", "| | median | ratio | 95 % interval |", "|---|---|---|---|"]
    lines += [
        f"| {row.name} | {row.median_seconds:.3f} s | {row.ratio:.2f} | {row.low:.2f} to {row.high:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def write_json(path: Path, tables: Mapping[str, Sequence[Row]]) -> None:
    """The same figures for programs."""
    figures = {title: [asdict(row) for row in rows] for title, rows in tables.items()}
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _compare_one(name: str, own: Sequence[float], peer: Sequence[float]) -> Row:
    ratios = [mine / theirs for mine, theirs in zip(own, peer, strict=True)]
    mean = statistics.fmean(ratios)
    half = _Z * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    return Row(name, statistics.median(own), statistics.median(ratios), mean - half, mean + half)
