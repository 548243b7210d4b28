"""The figures of README and docs: those of the benchmarks, as they were run last."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

from tests.documentation import README
from tests.house.sources import ROOT

PERFORMANCE = ROOT / "docs" / "performance.md"


def test_the_figures_of_the_readme_are_those_of_the_page_about_performance() -> None:
    figures = re.findall(r"\b[\d.,]+ m?s\b", README.read_text(encoding="utf-8"))
    assert figures
    measured = PERFORMANCE.read_text(encoding="utf-8")
    assert [figure for figure in figures if figure not in measured] == []


def test_the_page_about_performance_has_the_figures_of_the_last_benchmark_of_the_launch() -> None:
    measured: dict[str, list[str]] = {}
    for contenders in read_figures("launch").values():
        for each in contenders:
            interval = f" ({each['low']:.2f} to {each['high']:.2f})" if each["name"] == "hvdrun" else ""
            measured.setdefault(each["name"], []).append(f"{each['ratio']:.2f}{interval}")
    rows = read_rows(PERFORMANCE)
    del measured['python -c "import torch"']  # the divisor
    assert {name: rows.get(name) for name in measured} == measured


def test_the_page_about_performance_has_the_figures_of_the_last_benchmark_of_scale() -> None:
    figures = read_figures("scale")
    largest, simulated = figures["tls"][-1], figures["codec"][-1]
    (burst,) = (each for each in figures["sequencer"] if each["ranks"] == 256 and each["at_once"])
    assert (largest["hosts"], simulated["hosts"], burst["buckets"]) == (1000, 10_000, 50)
    measured = [
        f"{largest['join_seconds']:.2f} s",
        f"{largest['loss_seconds']:.3f} s",
        f"{sum(simulated['seconds'].values()):.2f} s",
        f"{burst['seconds'] * 1000:.1f} ms",
    ]
    table = PERFORMANCE.read_text(encoding="utf-8").partition("## Scale\n")[2]
    assert re.findall(r"\b[\d.]+ m?s\b", table) == measured


def test_the_page_about_performance_has_the_figures_of_the_last_benchmark_of_restarts() -> None:
    rows, figures = list(read_rows(PERFORMANCE).values()), read_figures("restart")
    for row in figures.values():
        seconds = sorted(row["seconds"])
        times = [statistics.median(seconds), seconds[min(len(seconds) - 1, int(0.9 * len(seconds)))]] if seconds else []
        cells = [f"{each:.2f} s" for each in times] or ["", ""]
        assert [f"{len(seconds)} of {row['kills']}", *cells] in rows
    hosts = figures["hosts, 30 kills"]
    assert (hosts["left"], hosts["returncode"]) == ([], 0)
    for name, early in hosts["early"]["sizes"].items():
        sizes = [round(size["resident_bytes"] / 1e6, 1) for size in (early, hosts["late"]["sizes"][name])]
        assert [f"{sizes[0]:.1f} MB", f"{sizes[1]:.1f} MB", f"{sizes[1] - sizes[0]:+.1f} MB"] in rows


def read_figures(benchmark: str) -> Any:
    """What a benchmark has written when it was run last."""
    return json.loads((ROOT / "benchmarks" / f"{benchmark}.json").read_text(encoding="utf-8"))


def read_rows(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cells, without emphasis."""
    rows = [
        line.replace("**", "").strip("|").split("|")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line[:1] == "|"
    ]
    return {first.strip(): [cell.strip() for cell in others] for first, *others in rows}
